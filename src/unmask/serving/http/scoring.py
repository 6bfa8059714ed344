"""Scoring: an upper bound on −log p of each text with its standard error, and the route for it."""

import math
from collections.abc import AsyncIterator, Iterator
from functools import partial
from time import monotonic

import numpy as np
import torch
from fastapi import FastAPI, Request

from unmask.evaluation.likelihood.estimators import Estimator, estimator
from unmask.evaluation.likelihood.passes import Tally, evaluate, summary
from unmask.model.denoiser import NetworkView
from unmask.serving.engine import Engine
from unmask.serving.http import answers
from unmask.serving.http.answers import ScoreAnswer
from unmask.serving.http.errors import unless_gone
from unmask.serving.http.requests import Requests
from unmask.serving.http.schema import ScoreRequest
from unmask.serving.http.served import Served
from unmask.serving.refusal import late, wrong
from unmask.text.row import Row
from unmask.text.stretch import Document
from unmask.text.tokens.tokenizer import encode_given


def estimator_of(requests: Requests) -> Estimator:
    """The best estimator of the served model's likelihood."""
    model = requests.model
    return estimator(objective=model.objective.bounded(), parts=model.parts, state=model.state)


def text_row(requests: Requests, text: str) -> Row:
    """The row of a text, as `evaluate` has it."""
    model = requests.model
    ids = encode_given(model.text_tokenizer(), text)
    if not ids:
        raise wrong("a text to score must not be empty.", param="texts")
    requests.check_length(len(ids) + model.layout.extra)
    document = Document(np.array(ids, np.int64), len(text.encode("utf-8", "replace")))
    rows = model.layout.text(document, length=max(model.spec.length, len(ids) + model.layout.extra))
    if not rows:
        raise wrong("a text to score has no letter that is scored: N and unknown letters are given.", param="texts")
    return rows[0]


def next_batch(tallies: Iterator[Tally]) -> Tally:
    """One more batch. The generator's own no_grad does not apply in other threads, hence here."""
    with torch.inference_mode():
        return next(tallies)


async def scores(engine: Engine, requests: Requests, body: ScoreRequest) -> AsyncIterator[ScoreAnswer]:
    """Score text after text, one batch between two ticks, so that scoring and sampling share the machine."""
    if body.passes > requests.limits.passes:
        raise wrong(f"passes may be {requests.limits.passes} at most; saw {body.passes}.", param="passes")
    requests.check_rows(len(body.texts), 1)
    deadline = monotonic() + requests.limits.seconds
    how = estimator_of(requests)
    for index, text in enumerate(body.texts):
        passage = await engine.between(partial(text_row, requests, text), again=index > 0)
        # The same row `passes` times: its numbers of masks are then stratified.
        rows = [passage] * (body.passes if how.chance else 1)
        network, device = NetworkView(requests.model.network), requests.model.device
        tallies = evaluate(network, rows, how, mask=requests.model.mask, seed=body.seed, device=device)
        tally = await engine.between(partial(next_batch, tallies), again=True)
        while not tally.complete:
            if monotonic() > deadline:
                raise late(requests.limits.seconds)
            tally = await engine.between(partial(next_batch, tallies), again=True)
        likelihood = summary(tally)
        tokens, size = passage.scored, passage.bytes
        nats = likelihood.nats_per_token * tokens
        assert likelihood.perplexity is not None  # `bounded` is a likelihood
        yield ScoreAnswer(
            index=index,
            nats=nats,
            standard_error=likelihood.standard_error * tokens,
            tokens=tokens,
            nats_per_token=likelihood.nats_per_token,
            perplexity=likelihood.perplexity,
            bits_per_byte=nats / size / math.log(2),
        )


def add_scoring(app: FastAPI, engine: Engine, served: Served) -> None:
    @app.post("/v1/score")
    async def score(request: Request, body: ScoreRequest) -> answers.Scores:
        """An upper bound on −log p of each text, with its standard error."""
        name, requests = served.named(body.model)
        how = estimator_of(requests)

        async def all_scores() -> list[answers.ScoreAnswer]:
            return [one async for one in scores(engine, requests, body)]

        data = await unless_gone(request, all_scores())
        return answers.Scores(model=name, estimator=how.name, means=how.means, data=data)
