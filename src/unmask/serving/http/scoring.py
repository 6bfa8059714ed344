"""Scoring: a bound on −log p of each text, with its error bar, and its route."""

import math
from collections.abc import AsyncIterator, Iterator
from time import monotonic

import numpy as np
import torch
from fastapi import FastAPI, Request

from unmask.errors import UserError
from unmask.evaluation.likelihood.estimators import Estimator, estimator
from unmask.evaluation.likelihood.passes import Tally, evaluate, summary
from unmask.serving.engine import Engine
from unmask.serving.http import answers
from unmask.serving.http.answers import Score
from unmask.serving.http.errors import check_name, unless_gone
from unmask.serving.http.requests import Kitchen
from unmask.serving.http.schema import ScoreRequest
from unmask.serving.refusal import late, wrong
from unmask.text.corpus.passages import Passage, given_and_answer
from unmask.text.tokens.tokenizer import encode_given


def estimator_of(kitchen: Kitchen) -> Estimator:
    """The best estimator for the served model."""
    model = kitchen.model
    return estimator(objective=model.objective, parts=model.parts, state=model.state)


def passage_of(kitchen: Kitchen, text: str) -> Passage:
    tokenizer, causal = kitchen.model.text_tokenizer(), kitchen.model.objective.facts.causal
    ids = encode_given(tokenizer, text)
    if not ids:
        raise wrong("a text to score must not be empty.", param="texts")
    kitchen.check_length(len(ids) + causal)
    if causal and tokenizer.bos is None:
        raise UserError("this autoregressive model's tokenizer has no bos token for a text to begin with.")
    lead = tokenizer.bos if causal else None
    return given_and_answer(
        np.zeros(0, np.int64), np.array(ids, np.int64), size=len(text.encode("utf-8", "replace")), number=0, lead=lead
    )


def look(tallies: Iterator[Tally]) -> Tally:
    """One more batch. The generator's own no_grad does not reach over threads, hence here."""
    with torch.inference_mode():
        return next(tallies)


async def scores(engine: Engine, kitchen: Kitchen, body: ScoreRequest) -> AsyncIterator[Score]:
    """Text after text, a batch between two ticks, so that scoring and drawing share the machine."""
    if body.passes > kitchen.limits.passes:
        raise wrong(f"passes may be {kitchen.limits.passes} at most; saw {body.passes}.", param="passes")
    kitchen.check_rows(len(body.texts), 1)
    deadline = monotonic() + kitchen.limits.seconds
    how = estimator_of(kitchen)
    for index, text in enumerate(body.texts):
        passage = await engine.between(lambda text=text: passage_of(kitchen, text), again=index > 0)  # type: ignore[misc]
        # The same row so many times: its looks are then spread evenly over few masks and many.
        rows = [passage] * (body.passes if how.chance else 1)
        network, device = kitchen.model.network.logits, kitchen.model.device
        tallies = evaluate(network, rows, how, mask=kitchen.model.mask, seed=body.seed, device=device)
        tally = await engine.between(lambda tallies=tallies: look(tallies), again=True)  # type: ignore[misc]
        while not tally.complete:
            if monotonic() > deadline:
                raise late(kitchen.limits.seconds)
            tally = await engine.between(lambda tallies=tallies: look(tallies), again=True)  # type: ignore[misc]
        found = summary(tally)
        tokens, size = passage.scored, passage.bytes
        nats = found.nats_per_token * tokens
        yield Score(
            index=index,
            nats=nats,
            standard_error=found.standard_error * tokens,
            tokens=tokens,
            nats_per_token=found.nats_per_token,
            perplexity=found.perplexity,
            bits_per_byte=nats / size / math.log(2),
        )


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
