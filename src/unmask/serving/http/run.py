"""Run a server: a socket, one or several worker processes, and a clean shutdown."""

import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.types import ASGIApp

from unmask.errors import UserError
from unmask.model.model import Model
from unmask.serving.engine import THREADS
from unmask.serving.http.app import create
from unmask.serving.http.connection import connections
from unmask.serving.http.workers import Workers
from unmask.serving.metrics import SHARED, forget_process
from unmask.serving.settings import ServerSettings
from unmask.settings import describe_settings

EXIT_CTRL_C = 130


@dataclass(frozen=True)
class Service:
    """A server with its model, as every worker process gets it: nothing is left out on the way."""

    settings: ServerSettings
    load: Callable[[Path], Model]  # reads a checkpoint, with the device and dtype that were asked for
    folder: Path  # of the model, with every link resolved
    identity: str  # of the model; a worker that finds another one in the folder refuses to start
    model_settings: Mapping[str, Any]  # those of the model in memory: its sampling defaults may be set in Python
    key: str | None = field(default=None, repr=False)


def service_of(
    model: Model, settings: ServerSettings, load: Callable[[Path], Model], *, key: str | None = None
) -> Service:
    """The service of a model for worker processes, which load it again from its folder."""
    if model.folder is None:
        raise UserError(
            f"{settings.workers} worker processes load the model from its folder, and this model has none: save it "
            "first, or serve it with one."
        )
    return Service(settings, load, model.folder.resolve(), identity_of(model), dict(model.settings), key)


def identity_of(model: Model) -> str:
    """A sha256 of all that decides a model's answers, its settings aside: weights, objective, tokenizer, mask."""
    digest = sha256(repr((describe_settings(model.objective), model.mask, model.spec)).encode())
    digest.update((model.tokenizer.fingerprint if model.tokenizer is not None else "").encode())
    modules = {"": model.network, **model.parts}
    weights = {
        f"{part}.{name}": value for part, module in modules.items() for name, value in module.state_dict().items()
    }
    for name, value in sorted({**weights, **model.state}.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def load_again(service: Service) -> Model:
    """The model of a service, in another process; refused if its folder has come to hold another one."""
    model = service.load(service.folder)
    if identity_of(model) != service.identity:
        raise UserError(
            f"the model in {service.folder} is not the one that this server was started with: start the server anew."
        )
    return replace(model, settings=service.model_settings)


def listening_socket(host: str, port: int) -> socket.socket:
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


def serve(
    model: Model,
    settings: ServerSettings,
    listening: socket.socket,
    *,
    load: Callable[[Path], Model],
    key: str | None = None,
) -> None:
    """Answer until SIGTERM or Ctrl-C; then finish running requests within the grace.

    One process serves the model itself; several read it from its folder with `load`.
    """
    if settings.workers == 1:
        answer(model, settings, listening, key=key)
        return
    work = partial(answer_in_worker, service_of(model, settings, load, key=key))
    with shared_numbers() as folder:
        grace = settings.drain + settings.grace
        Workers(work, settings.workers, listening, grace, ended=partial(forget_process, folder)).run()


def answer(model: Model, settings: ServerSettings, listening: socket.socket, *, key: str | None = None) -> None:
    server = uvicorn.Server(uvicorn_config(create(model, settings, key=key), settings))
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


def answer_in_worker(service: Service, listening: socket.socket, ready: Callable[[], None]) -> None:
    """One of several processes; each has its share of the cores."""
    log_to_standard_error()
    torch.set_num_threads(max(1, torch.get_num_threads() // service.settings.workers))
    model = load_again(service)
    ready()
    answer(model, service.settings, listening, key=service.key)


def log_to_standard_error() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def uvicorn_config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connections(settings.limits),  # type: ignore[arg-type]  # it only calls it
        access_log=False,  # the guard logs, without addresses
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
        timeout_keep_alive=75,  # longer than load balancers keep idle connections, so that they close first
        ws="none",
    )


@contextmanager
def shared_numbers() -> Iterator[str]:
    """A folder through which the processes add up their metrics."""
    with tempfile.TemporaryDirectory(prefix="unmask-") as folder:
        os.environ[SHARED] = folder
        try:
            yield folder
        finally:
            del os.environ[SHARED]
