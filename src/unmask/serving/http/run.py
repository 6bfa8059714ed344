"""Run a server: a socket, one or several worker processes, and a clean shutdown."""

import logging
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
import uvicorn
from starlette.types import ASGIApp

from unmask.errors import UserError
from unmask.model.checkpoint import Model, load
from unmask.serving.engine import THREADS
from unmask.serving.http.app import Service, create
from unmask.serving.http.connection import connections
from unmask.serving.http.guard import LOOPBACK, Rules
from unmask.serving.http.workers import Workers
from unmask.serving.limits import Limits
from unmask.serving.metrics import SHARED, forget_process

EXIT_CTRL_C = 130


@dataclass(frozen=True)
class ServerSettings:
    """Where and how a server runs."""

    checkpoint: str
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    grace: float = 30.0  # seconds that running requests get at shutdown
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    tracebacks: bool = False
    classifier: str | None = None
    key: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"a server needs at least one worker process; saw {self.workers}.")
        if not 0 <= self.port < 65536:
            raise UserError(f"a port is a number from 0 to 65535; saw {self.port}.")
        if not self.grace >= 0:
            raise UserError(f"the grace (seconds to finish) must not be negative; saw {self.grace}.")
        if self.key is not None and len(self.key) < 8:
            raise UserError("an API key of fewer than 8 characters can be guessed; use a longer one.")

    @property
    def service(self) -> Service:
        """On a loopback address only loopback names are answered, so that pages of other sites cannot reach it."""
        hosts = self.hosts or (LOOPBACK if is_loopback(self.host) else ())
        rules = Rules(key=self.key, hosts=tuple(host.lower() for host in hosts))
        return Service(self.name, self.limits, rules, self.origins, self.tracebacks, self.classifier)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def bound(host: str, port: int) -> socket.socket:
    """A listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror}. Choose another with --host or --port."
        ) from None
    listening.set_inheritable(True)
    return listening


def serve(running: ServerSettings, listening: socket.socket, model: Model) -> None:
    """Answer until SIGTERM or Ctrl-C; then finish running requests within the grace."""
    if running.workers == 1:
        answer(running, listening, model)
        return
    with shared_numbers() as folder:
        work = partial(answer_in_worker, running)
        Workers(work, running.workers, listening, running.grace, ended=partial(forget_process, folder)).run()


def answer(running: ServerSettings, listening: socket.socket, model: Model) -> None:
    """One process that answers."""
    server = uvicorn.Server(settings(create(model, running.service), running))
    try:
        server.run([listening])
    finally:
        if stuck_threads():  # the interpreter would wait for them
            logging.shutdown()
            os._exit(EXIT_CTRL_C)


def stuck_threads() -> bool:
    """Whether an engine that was closed has left a thread behind that does not end."""
    left = [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    for thread in left:
        thread.join(0.5)
    return any(thread.is_alive() for thread in left)


def answer_in_worker(running: ServerSettings, number: int, listening: socket.socket) -> None:
    """One of several processes; each has its share of the cores."""
    log_to_standard_error()
    torch.set_num_threads(max(1, torch.get_num_threads() // running.workers))
    answer(running, listening, load(running.checkpoint))


def log_to_standard_error() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def settings(app: ASGIApp, running: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connections(running.limits),  # type: ignore[arg-type]  # it only calls it
        access_log=False,  # the guard logs, without addresses
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(running.grace)),
        timeout_keep_alive=75,  # longer than load balancers keep idle connections, so that they close first
        ws="none",
    )


@contextmanager
def shared_numbers() -> Iterator[str]:
    """A folder through which the processes add up their metrics."""
    with tempfile.TemporaryDirectory(prefix="unmask-") as folder:
        os.environ[SHARED] = folder
        yield folder
        del os.environ[SHARED]
