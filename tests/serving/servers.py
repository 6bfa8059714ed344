"""A real server on a free port."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from unmask.model.model import Model
from unmask.serving.http.app import create
from unmask.serving.http.run import bound, uvicorn_config
from unmask.serving.limits import Limits
from unmask.serving.settings import ServerSettings


@contextmanager
def serving(
    model: Model,
    *,
    name: str = "tiny",
    limits: Limits | None = None,
    grace: float = 2,
    key: str | None = None,
    **others,
) -> Iterator[str]:
    """A server in a thread of its own; gives its address."""
    settings = ServerSettings(name=name, limits=limits or Limits(), grace=grace, **others)
    with bound("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn_config(create(model, settings, key=key), settings))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        yield address
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server does not stop"
