"""Serve a model: an OpenAI-compatible API, and a page that shows text emerge.

unmask serve stories                                   then open http://127.0.0.1:8000
unmask serve runs/mine --host 0.0.0.0 --key-file key.txt --workers 2
unmask serve runs/mine --adapter poems=runs/poems      `model` of a request chooses mine or poems
unmask serve runs/mine --classifier runs/mood          requests may then set `classifier_label`
"""

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from unmask.cli.flags import Place, Placing
from unmask.errors import UserError, install
from unmask.model.predictor import load_guide
from unmask.sampling.recipe import Recipe, doubt
from unmask.serving.settings import ServerSettings
from unmask.untrusted import read_text

KEY = "UNMASK_API_KEY"


@dataclass(frozen=True)
class Settings:
    checkpoint: Annotated[str, tyro.conf.Positional]  # a folder, or a name on the hub
    key_file: Path | None = None  # file with the API key; none: the variable UNMASK_API_KEY
    server: Annotated[ServerSettings, tyro.conf.arg(name="")] = field(default_factory=ServerSettings)
    place: Placing = field(default_factory=Place)


def api_key(settings: Settings) -> str | None:
    """The API key, from a file or the environment."""
    if settings.key_file is None:
        key = os.environ.get(KEY) or None
    else:
        key = read_text(settings.key_file).strip()
        if not key:
            raise UserError(f"the key file {settings.key_file} is empty: put the key into it.")
    if key is not None and len(key) < 8:
        raise UserError("an API key of fewer than 8 characters can be guessed; use a longer one.")
    return key


def run(settings: Settings) -> None:
    try:
        from unmask.serving.http.run import listening_socket, log_to_standard_error, serve
        from unmask.serving.http.served import served_models
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: {install('serve')}") from None
    log_to_standard_error()
    print(f"unmask: loading {settings.checkpoint}", file=sys.stderr, flush=True)
    server, key = settings.server, api_key(settings)
    server = replace(server, name=server.name or Path(settings.checkpoint).name)
    model = settings.place.load(settings.checkpoint)
    model.text_tokenizer()
    warning = doubt(model, model.spec.length, Recipe())
    if warning is not None:
        print(f"unmask: warning: {warning}", file=sys.stderr)
    if server.adapter:
        served_models(model, server)  # an error before the server listens
    if server.classifier is not None:
        load_guide(server.classifier, model)  # an error now rather than at the first request
    with listening_socket(server.host, server.port) as listening:
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(
            f"unmask serves {server.name} at http://{shown}:{port} (API reference at /docs; Ctrl-C stops)", flush=True
        )
        if key is None and not server.is_local:
            print("unmask: other machines can reach this server and no key is set; see docs/how/serve.md", flush=True)
        serve(model, server, listening, load=settings.place.load, key=key)
