"""Run a server: a socket, one or several worker processes, and a clean shutdown."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch
import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from unmask.errors import UserError
from unmask.model.checkpoint import Model, load
from unmask.serving.http.app import Service, create
from unmask.serving.http.guard import LOOPBACK, Rules
from unmask.serving.limits import Limits
from unmask.serving.metrics import SHARED

TOLD = "UNMASK_SERVING"  # environment variable that tells worker processes what to serve


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
        uvicorn.Server(settings(create(model, running.service), running)).run([listening])
        return
    with shared_numbers():
        os.environ[TOLD] = json.dumps(asdict(running))
        config = settings("unmask.serving.http.run:worker", running, factory=True)
        Multiprocess(config, sockets=[listening]).run()


def settings(app: ASGIApp | str, running: ServerSettings, *, factory: bool = False) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        factory=factory,
        workers=running.workers,
        access_log=False,  # the guard logs, without addresses
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(running.grace)),
        timeout_keep_alive=75,  # longer than load balancers keep idle connections, so that they close first
        timeout_worker_healthcheck=60,
        limit_concurrency=None,
        ws="none",
    )


@contextmanager
def shared_numbers() -> Iterator[None]:
    """A folder through which the processes add up their metrics."""
    with tempfile.TemporaryDirectory(prefix="unmask-") as folder:
        os.environ[SHARED] = folder
        yield
        del os.environ[SHARED]


def told(text: str) -> ServerSettings:
    """The settings that `serve` passed to its workers."""
    said = json.loads(text)
    lists = {name: tuple(said[name]) for name in ("hosts", "origins")}
    return ServerSettings(**{**said, **lists, "limits": Limits(**said["limits"])})


def worker() -> ASGIApp:
    """The application of one worker process; each has its share of the cores."""
    running = told(os.environ[TOLD])
    torch.set_num_threads(max(1, torch.get_num_threads() // running.workers))
    return create(load(running.checkpoint), running.service)
