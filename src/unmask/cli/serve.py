"""Serve a model: an OpenAI-compatible API, and a page that shows text emerge.

unmask serve stories                                   then open http://127.0.0.1:8000
unmask serve runs/mine --host 0.0.0.0 --key-file key.txt --workers 2
unmask serve runs/mine --classifier runs/mood          requests may then set `towards`
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from unmask.cli.flags import Place, Placing
from unmask.errors import UserError, install
from unmask.model.classifier import load_classifier
from unmask.sampling.recipe import Recipe, doubt
from unmask.serving.limits import Limits

KEY = "UNMASK_API_KEY"


@dataclass(frozen=True)
class Settings:
    checkpoint: Annotated[str, tyro.conf.Positional]  # a folder, or a name on the hub
    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0: reachable from other machines, so set a key
    port: int = 8000  # port to listen on; 0: any free one
    name: str | None = None  # model name in the API; none: the folder's name
    key_file: Path | None = None  # file with the API key; none: the variable UNMASK_API_KEY
    workers: int = 1  # processes that share the port, each with the model and some of the cores
    grace: float = 30.0  # seconds for running requests to finish when the server stops
    hosts: tuple[str, ...] = ()  # host names to answer to; none: any, or only local ones on 127.0.0.1
    origins: tuple[str, ...] = ()  # other sites whose pages may use the server (CORS): https://example.org
    tracebacks: bool = False  # log failures with their traceback, which may show a prompt
    classifier: str | None = None  # a folder that `unmask classifier` wrote, for requests that set `towards`
    limits: Limits = field(default_factory=Limits)
    place: Placing = field(default_factory=Place)


def key_of(settings: Settings) -> str | None:
    if settings.key_file is None:
        return os.environ.get(KEY) or None
    try:
        key = settings.key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the key file {settings.key_file}: {type(error).__name__}.") from None
    if not key:
        raise UserError(f"the key file {settings.key_file} is empty: put the key into it.")
    return key


def run(settings: Settings) -> None:
    try:
        from unmask.serving.http.run import ServerSettings, bound, is_loopback, log_to_standard_error, serve
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: {install('serve')}") from None
    log_to_standard_error()
    name = settings.name or Path(settings.checkpoint).name
    same = (
        "checkpoint",
        "host",
        "port",
        "workers",
        "grace",
        "hosts",
        "origins",
        "tracebacks",
        "classifier",
        "limits",
    )
    running = ServerSettings(name=name, key=key_of(settings), **{one: getattr(settings, one) for one in same})
    model = settings.place.load(settings.checkpoint)
    model.text_tokenizer()
    warning = doubt(model, model.spec.length, Recipe())
    if warning is not None:
        print(f"unmask: warning: {warning}", file=sys.stderr)
    if settings.classifier is not None:
        load_classifier(settings.classifier, model)  # an error now rather than at the first request
    with bound(running.host, running.port) as listening:
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"unmask serves {name} at http://{shown}:{port} (API reference at /docs; Ctrl-C stops)", flush=True)
        if running.key is None and not is_loopback(running.host):
            print("unmask: other machines can reach this server and no key is set; see docs/how/serve.md", flush=True)
        serve(running, listening, model)
