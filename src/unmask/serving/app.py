"""The application: routes, and how each answers. `create` makes it of a model."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from unmask import __version__
from unmask.errors import UserError, unknown
from unmask.model.checkpoint import Model
from unmask.sampling.recipe import LEFT_TO_RIGHT, ONLY_FOR, OWN
from unmask.sampling.samplers import SAMPLERS
from unmask.sampling.step import Work
from unmask.serving import answers
from unmask.serving.engine import Engine
from unmask.serving.filling import Filling, Kitchen, seed_of
from unmask.serving.guard import Guard, Rules
from unmask.serving.limits import Limits
from unmask.serving.metrics import Metrics
from unmask.serving.refusal import Refusal, failed, wrong
from unmask.serving.replies import Reply, event
from unmask.serving.report import reporter
from unmask.serving.schema import CompletionRequest, Drawing, InfillRequest, ScoreRequest
from unmask.serving.scoring import estimator_of, scores
from unmask.text.template import Lengths

PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.Error, "description": about}
    for status, about in {
        400: "The request is wrong; the message says how.",
        401: "An API key is needed.",
        404: "There is no such model, or no such address.",
        413: "The request is too large.",
        415: "The request is not JSON.",
        421: "The server does not answer to that host name.",
        429: "Too many requests wait; Retry-After says when to try again.",
        500: "The server failed.",
        503: "The server is shutting down.",
        504: "The request took too long.",
    }.items()
}
STREAM = {"text/event-stream": {"schema": {"type": "string"}}}

Answer = TypeVar("Answer")


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
    kitchen = Kitchen(model, service.limits)
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


def add_errors(app: FastAPI) -> None:
    """Every error in one shape."""

    def shown(refusal: Refusal) -> Response:
        headers = {"content-type": "application/json", **refusal.headers}
        return Response(json.dumps(refusal.body()), refusal.status, headers)

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return shown(error)

    async def broken(_: Request, error: Exception) -> Response:
        return shown(failed())  # and the guard writes it down

    async def mistaken(_: Request, error: Exception) -> Response:
        return shown(wrong(str(error)))

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return shown(explained(error))

    async def by_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal = wrong(str(error.detail), status=error.status_code)
        refusal.headers.update(error.headers or {})
        return shown(refusal)

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(UserError, mistaken)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, by_http)
    app.add_exception_handler(Exception, broken)


def explained(error: RequestValidationError) -> Refusal:
    """The first thing that is wrong with a body, without repeating the body."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:2] if isinstance(part, str)]
    param = place[0] if place else first.get("ctx", {}).get("field")
    if first["type"] == "json_invalid":
        return wrong("the body is not JSON.")
    own = first["type"] in ("object", "unknown_field") or not place
    return wrong(first["msg"] if own else f"{param}: {first['msg']}.", param=param)


def check_name(asked: str, name: str) -> None:
    if asked not in ("", name):
        raise wrong(str(unknown("model", asked[:80], [name])), param="model", status=404, code="model_not_found")


def add_drawing(app: FastAPI, engine: Engine, kitchen: Kitchen, name: str) -> None:
    tokenizer = kitchen.model.text_tokenizer()

    async def entered(body: Drawing, kind: str) -> Reply:
        check_name(body.model, name)
        body = body.model_copy(update={"seed": seed_of(body)})
        lengths = await best_lengths(engine, kitchen, body) if isinstance(body, InfillRequest) else []
        made: list[Filling] = []

        def make() -> Work:
            if isinstance(body, CompletionRequest):
                made.append(kitchen.completion(body))
            else:
                assert isinstance(body, InfillRequest)
                made.append(kitchen.infill(body, lengths))
            return made[0].work

        ticket = await engine.enter(make, draft=body.draft)
        return Reply(made[0], ticket, tokenizer, name, kind)

    async def answer(request: Request, body: Drawing, kind: str) -> Any:
        reply = await entered(body, kind)
        if not body.stream:
            return await unless_gone(request, reply.whole())
        options = body.stream_options if isinstance(body, CompletionRequest) else None
        with_usage = options is not None and options.include_usage
        events = reply.step_events() if body.events == "steps" else reply.text_events(with_usage=with_usage)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(streamed(reply, events), media_type="text/event-stream", headers=headers)

    @app.post("/v1/completions", response_model=answers.Completion, responses={200: {"content": STREAM}})
    async def completions(request: Request, body: CompletionRequest) -> Any:
        """Continue a text, or fill between a prompt and a suffix. OpenAI's clients work unchanged."""
        return await answer(request, body, "cmpl")

    @app.post("/v1/infill", response_model=answers.Infilled, responses={200: {"content": STREAM}})
    async def infill(request: Request, body: InfillRequest) -> Any:
        """Fill the blanks of a text, wherever they are."""
        return await answer(request, body, "infill")


async def best_lengths(engine: Engine, kitchen: Kitchen, body: InfillRequest) -> list[Lengths]:
    """The lengths that the blanks may have, those around which the given text fits best first."""
    choices = await engine.between(lambda: kitchen.lengths(body))
    if len(choices) < 2:
        return choices
    seed = seed_of(body)
    fits = [await engine.between(lambda one=one: kitchen.fit(body, one, seed), again=True) for one in choices]  # type: ignore[misc]
    return [choices[i] for i in sorted(range(len(choices)), key=lambda i: -fits[i])]


async def streamed(reply: Reply, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events; an error on the way becomes the last of them."""
    try:
        async for one in events:
            yield one
    except Refusal as refusal:
        yield event(refusal.body(), "error")
    except UserError as error:
        yield event(wrong(str(error)).body(), "error")
    finally:
        reply.ticket.leave()


async def unless_gone(request: Request, answer: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer; if the client leaves first, the work is given up."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise wrong("the client has gone.", status=400)
    finally:
        working.cancel()
        leaving.cancel()


def add_scoring(app: FastAPI, engine: Engine, kitchen: Kitchen, name: str) -> None:
    how = estimator_of(kitchen)

    @app.post("/v1/score")
    async def score(request: Request, body: ScoreRequest) -> answers.Scores:
        """A bound on −log p of each text, with its error bar."""
        check_name(body.model, name)

        async def all_scores() -> list[answers.Score]:
            return [one async for one in scores(engine, kitchen, body)]

        data = await unless_gone(request, all_scores())
        return answers.Scores(model=name, estimator=how.name, means=how.means, data=data)


def add_facts(app: FastAPI, kitchen: Kitchen, name: str, metrics: Metrics) -> None:
    model, limits = kitchen.model, kitchen.limits
    card = answers.ModelCard(
        id=name,
        created=int(time.time()),
        objective=model.objective,
        parameters=model.num_parameters,
        max_tokens=limits.of_text(model.architecture.length),
        max_candidates=limits.rows,
        samplers=samplers_of(model.objective),
    )

    @app.get("/v1/models")
    async def models() -> answers.Models:
        """The model that is served, with its samplers."""
        return answers.Models(data=[card])

    @app.get("/v1/models/{model_id}")
    async def one_model(model_id: str) -> answers.ModelCard:
        check_name(model_id, name)
        return card

    @app.get("/health")
    async def health() -> answers.Health:
        """Whether the server is up."""
        return answers.Health()

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def numbers() -> Response:
        """Numbers for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")


def samplers_of(objective: str) -> list[answers.Sampler]:
    """The samplers a model of this objective can use, its own first."""
    own = OWN[objective]
    if own == LEFT_TO_RIGHT:
        return [answers.Sampler(name=own, about="left to right", takes_steps=False, needs_steps=False)]
    # An answer is sent while it grows: samplers that hide tokens again are not for a server.
    kept = [name for name in SAMPLERS if name not in ONLY_FOR and not name.startswith("remask-")]
    names = [own, *(name for name in kept if name != own)]
    return [
        answers.Sampler(
            name=name,
            about=SAMPLERS[name].about,
            takes_steps=SAMPLERS[name].build is not None,
            needs_steps=SAMPLERS[name].build_free is None,
        )
        for name in names
    ]


def add_page(app: FastAPI) -> None:
    """The page at /, and the reference at /docs: files of this package, read once."""
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
