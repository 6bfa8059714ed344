"""The application: a model behind its routes. `create` makes it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from unmask import __version__
from unmask.model.checkpoint import Model
from unmask.serving.controls import Controls
from unmask.serving.drawing import add_drawing
from unmask.serving.engine import Engine
from unmask.serving.facts import add_facts
from unmask.serving.failures import ERRORS, add_errors
from unmask.serving.filling import Kitchen
from unmask.serving.guard import Guard, Rules
from unmask.serving.limits import Limits
from unmask.serving.metrics import Metrics
from unmask.serving.pages import add_page
from unmask.serving.report import reporter
from unmask.serving.scoring import add_scoring


@dataclass(frozen=True)
class Service:
    """What a server is, beyond its model."""

    name: str  # of the model, as clients know it
    limits: Limits
    rules: Rules
    origins: tuple[str, ...] = ()  # other sites whose pages may use the server
    tracebacks: bool = False  # log failures with their traceback, which may show a prompt


def create(model: Model, service: Service) -> ASGIApp:
    """The whole server as an ASGI application."""
    model.text_tokenizer()
    metrics, report = Metrics(), reporter(tracebacks=service.tracebacks)
    kitchen = Kitchen(model, service.limits, Controls(model, service.limits))
    engine = Engine(
        model.network, vocab=model.architecture.vocab, limits=service.limits, metrics=metrics, report=report
    )

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await engine.close()
        metrics.gone()

    app = FastAPI(title="unmask", version=__version__, lifespan=life, docs_url=None, redoc_url=None, responses=ERRORS)
    add_errors(app)
    add_drawing(app, engine, kitchen, service.name)
    add_scoring(app, engine, kitchen, service.name)
    add_facts(app, kitchen, service.name, metrics)
    add_page(app)
    routes = frozenset(path for route in app.routes if isinstance(path := getattr(route, "path", None), str))
    guarded: ASGIApp = Guard(
        app, rules=service.rules, limits=service.limits, metrics=metrics, report=report, routes=routes
    )
    if not service.origins:
        return guarded
    return CORSMiddleware(
        guarded, allow_origins=list(service.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
    )
