"""The routes that sample: completions and infilling, whole or as a stream."""

import math
from collections.abc import AsyncIterator
from functools import partial
from threading import Event
from typing import Any

from fastapi import FastAPI, Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from unmask.errors import UserError
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.tasks.lengths import plausibility
from unmask.serving.batch import Job
from unmask.serving.engine import Engine
from unmask.serving.http import answers
from unmask.serving.http.errors import unless_gone
from unmask.serving.http.replies import LINE, Reply, event
from unmask.serving.http.requests import Requests, field_of, request_seed
from unmask.serving.http.schema import ChatRequest, CompletionRequest, Drawing, InfillRequest
from unmask.serving.http.served import Served
from unmask.serving.progress import Filling
from unmask.serving.refusal import Refusal, closing, wrong
from unmask.text.prompt.template import Lengths

EVENT = {
    "type": "object",
    "description": "One Server-Sent Event.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON, or [DONE]."}},
    "required": ["data"],
}
STREAM = {"text/event-stream": {"schema": EVENT}}
PING = 15.0  # seconds between comments that keep a stream open while nothing else is sent


def add_drawing(app: FastAPI, engine: Engine, served: Served) -> None:
    tokenizer = served.base.model.text_tokenizer()

    async def entered(body: Drawing, kind: str, talking: Requests | None = None) -> Reply:
        name, requests = served.named(body.model)
        requests = talking or requests
        body = body.model_copy(update={"seed": request_seed(body)})
        patterned = field_of(body) is not None
        if patterned:  # compiled while ticks continue; `make` then finds it
            await compile_constraint(engine, requests, body)
        lengths: list[Lengths] = []
        rated = None
        if isinstance(body, InfillRequest):
            lengths, chance = await best_lengths(engine, requests, body, patterned)
            rated = partial(scores, engine, requests, lengths, chance)
        made: list[Filling] = []

        def make() -> Job:
            if isinstance(body, CompletionRequest):
                made.append(requests.completion(body))
            else:
                assert isinstance(body, InfillRequest)
                made.append(requests.infill(body, lengths))
            return made[0].work

        top = body.logprobs if isinstance(body, CompletionRequest) else None
        network = requests.model.network
        ticket = await engine.enter(make, network=network, draft=body.draft, top=top or 0, again=patterned)
        return Reply(made[0], ticket, tokenizer, name, kind, top, rated)

    async def answer(request: Request, body: Drawing, kind: str) -> Any:
        reply = await unless_gone(request, entered(body, kind))
        if not body.stream:
            return await unless_gone(request, reply.whole())
        options = body.stream_options if isinstance(body, CompletionRequest) else None
        with_usage = options is not None and options.include_usage
        events = reply.step_events() if body.events == "steps" else reply.text_events(with_usage=with_usage)
        return event_stream(reply, events)

    @app.post("/v1/completions", response_model=answers.Completion, responses={200: {"content": STREAM}})
    async def completions(request: Request, body: CompletionRequest) -> Any:
        """Continue a text, or fill between a prompt and a suffix, as OpenAI's clients ask for it."""
        return await answer(request, body, "cmpl")

    @app.post("/v1/chat/completions", response_model=answers.ChatCompletion, responses={200: {"content": STREAM}})
    async def chat(request: Request, body: ChatRequest) -> Any:
        """Answer a conversation, as OpenAI's clients ask for it."""
        talking = served.named(body.model)[1].talking()
        reply = await unless_gone(request, entered(body.completion(talking.conversation), "cmpl", talking))
        if not body.stream:
            whole = await unless_gone(request, reply.whole())
            assert isinstance(whole, answers.Completion)
            return answers.ChatCompletion.of(whole)
        options = body.stream_options
        events = reply.chat_events(with_usage=options is not None and options.include_usage)
        return event_stream(reply, reply.step_events() if body.events == "steps" else events)

    @app.post("/v1/infill", response_model=answers.InfillAnswer, responses={200: {"content": STREAM}})
    async def infill(request: Request, body: InfillRequest) -> Any:
        """Fill the blanks of a text, wherever they are."""
        return await answer(request, body, "infill")


async def compile_constraint(engine: Engine, requests: Requests, body: Drawing) -> Constraint | None:
    """The constraint of a request, made beside the ticks; given up when the request ends first."""
    over = Event()

    def check() -> None:
        if over.is_set():
            raise closing()

    try:
        return await engine.between(lambda: requests.controls.constraint(body, check), beside=True)
    finally:
        over.set()


async def best_lengths(
    engine: Engine, requests: Requests, body: InfillRequest, again: bool
) -> tuple[list[Lengths], list[float]]:
    """The lengths of the blanks of each candidate, the most probable first, and their probabilities."""
    choices = await engine.between(lambda: requests.lengths(body), again=again)
    if len(choices) < 2:
        return choices, [1.0]
    steps = requests.weigh(body, choices)
    while (posterior := await engine.between(lambda: next(steps), again=True)) is None:
        pass  # a batch of forward passes; others have their turn
    lengths, known = posterior.lengths(body.n), dict(zip(posterior.choices, posterior.chance, strict=True))
    return lengths, [known[one] for one in lengths]


async def scores(
    engine: Engine, requests: Requests, lengths: list[Lengths], chance: list[float], filling: Filling
) -> list[float | None]:
    """The scores of finished candidates, as `unmask infill` has them; none if the server is closing."""
    n = len(filling.rows)
    which = [lengths[i % len(lengths)] if lengths else () for i in range(n)]
    try:
        likely = [await engine.between(partial(requests.likely, filling, i), again=True) for i in range(n)]
    except Refusal:
        return [None] * n
    return [*plausibility(which, [chance[i % len(chance)] for i in range(n)], likely)]


def event_stream(reply: Reply, events: AsyncIterator[ServerSentEvent]) -> EventSourceResponse:
    """The events as a response, with pings. On shutdown it may finish within the server's own grace."""
    return EventSourceResponse(safe_events(reply, events), ping=PING, sep=LINE, shutdown_grace_period=math.inf)


async def safe_events(reply: Reply, events: AsyncIterator[ServerSentEvent]) -> AsyncIterator[ServerSentEvent]:
    """The events; an error becomes the last of them."""
    try:
        async for event_ in events:
            yield event_
    except Refusal as refusal:
        yield event(refusal.body(), "error")
    except UserError as error:
        yield event(wrong(str(error)).body(), "error")
    finally:
        reply.ticket.leave()
