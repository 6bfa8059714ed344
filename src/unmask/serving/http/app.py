"""The application: the routes of a served model. `create` builds it."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

from fastapi import FastAPI, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from unmask import __version__
from unmask.model.checkpoint import Model
from unmask.serving.engine import Engine
from unmask.serving.http.about import add_facts
from unmask.serving.http.classifying import add_classifying
from unmask.serving.http.drawing import add_drawing
from unmask.serving.http.errors import ERRORS, add_errors
from unmask.serving.http.guard import Guard
from unmask.serving.http.scoring import add_scoring
from unmask.serving.http.served import served_models
from unmask.serving.log import reporter
from unmask.serving.metrics import Metrics
from unmask.serving.refusal import wrong
from unmask.serving.settings import ServerSettings


def create(model: Model, settings: ServerSettings, *, key: str | None = None) -> ASGIApp:
    """The whole server as an ASGI application; `key`: the API key, None: no key is needed."""
    model.text_tokenizer()
    metrics, report = Metrics(), reporter(tracebacks=settings.tracebacks)
    served = served_models(model, settings)
    engine = Engine(model.network, vocab=model.spec.vocab, limits=settings.limits, metrics=metrics, report=report)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        drain_on_term(engine, settings.drain)
        yield
        await engine.close()

    app = FastAPI(
        title="unmask",
        version=__version__,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERRORS,
    )
    add_errors(app)
    add_drawing(app, engine, served)
    add_scoring(app, engine, served)
    add_classifying(app, engine, served)
    add_facts(app, engine, served, metrics)
    add_page(app)
    routes = frozenset(path for route in app.routes if isinstance(path := getattr(route, "path", None), str))
    guarded: ASGIApp = Guard(app, settings, key=key, metrics=metrics, report=report, routes=routes)
    if not settings.origins:
        return guarded
    return CORSMiddleware(
        guarded, allow_origins=list(settings.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
    )


def drain_on_term(engine: Engine, seconds: float) -> None:
    """From SIGTERM on the engine is not ready; whoever handled the signal gets it `seconds` later, a second at once.

    It is called in the event loop. Only the main thread gets signals.
    """
    before = signal.getsignal(signal.SIGTERM)
    if not seconds or not callable(before) or threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()

    def note(number: int, frame: FrameType | None) -> None:
        if engine.draining:
            before(number, frame)
        engine.draining = True
        loop.call_soon_threadsafe(loop.call_later, seconds, before, number, None)

    signal.signal(signal.SIGTERM, note)


PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add_page(app: FastAPI) -> None:
    """Serve the page at / and the reference at /docs: files of this package, read once."""
    files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in KINDS}

    def page(name: str) -> Response:
        if name not in files:
            raise wrong("there is nothing at this address.", status=404)
        kind = KINDS[Path(name).suffix]
        return Response(files[name], media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return page("docs.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        return page(name)
