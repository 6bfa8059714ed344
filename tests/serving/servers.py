"""A real server on a free port."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from unmask.model.model import Model
from unmask.serving.http.app import Service, create
from unmask.serving.http.guard import Rules
from unmask.serving.http.run import ServerSettings, bound, settings
from unmask.serving.limits import Limits


@contextmanager
def serving(
    model: Model, *, name: str = "tiny", limits: Limits | None = None, grace: float = 2, **rules
) -> Iterator[str]:
    """A server in a thread of its own; gives its address."""
    others = {name: rules.pop(name) for name in ("origins", "tracebacks") if name in rules}
    limits = limits or Limits()
    service = Service(name, limits, Rules(**rules), **others)
    with bound("127.0.0.1", 0) as listening:
        server = uvicorn.Server(
            settings(create(model, service), ServerSettings("", name, grace=grace, limits=limits))
        )
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
