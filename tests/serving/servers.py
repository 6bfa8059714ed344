"""Real servers on free ports: in a thread, or as a process."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import uvicorn

from unmask.model.model import Model
from unmask.serving.http.app import create
from unmask.serving.http.run import listening_socket, uvicorn_config
from unmask.serving.limits import Limits
from unmask.serving.settings import ServerSettings


@contextlib.contextmanager
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
    with listening_socket("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn_config(create(model, settings, key=key), settings))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        yield address
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive(), "the server does not stop"


@contextlib.contextmanager
def command(
    *arguments: str, program: tuple[str, ...] = ("-m", "unmask"), **environment: str
) -> Iterator[tuple[subprocess.Popen, str]]:
    """`unmask serve` as a process of its own, once it answers; gives it and its address."""
    process = subprocess.Popen(
        [sys.executable, *program, "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        assert found, line + process.stderr.read()
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{found[0]}/health", timeout=1).status_code == 200:
                    break
            time.sleep(0.05)
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()
