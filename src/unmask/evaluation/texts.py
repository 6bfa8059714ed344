"""Measure a model in Python: `evaluate` on a corpus, as `unmask evaluate` does, and `score` text by text."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.errors import UserError
from unmask.evaluation.differentiable import scored_row
from unmask.evaluation.likelihood import measure
from unmask.evaluation.likelihood.estimators import estimator
from unmask.evaluation.likelihood.measure import How
from unmask.evaluation.likelihood.passes import evaluate as passes_over
from unmask.evaluation.likelihood.passes import summary
from unmask.model.checkpoint import load
from unmask.model.denoiser import NetworkView
from unmask.model.model import Model
from unmask.settings import merge_settings
from unmask.text.corpus.tokenized import read_documents, tokenize


def evaluate(
    model: Model | str | Path, data: str | Path | Sequence[str], *, split: str | None = None, **how: Any
) -> dict[str, Any]:
    """The likelihood of a corpus, or a bound on it, with its error bars: what `unmask evaluate --json` prints.

    model   a model, or the folder or name of one
    data    a file, a folder, a corpus or prepared data, as on the command line; or a list of texts, each a document
    split   of data that has several: valid, test, train; None: valid, else test
    how     passes=, precision=, seconds=, rows=, estimator=, pack=, length=, stride=, seed=, batch_tokens=

    >>> unmask.evaluate("stories", ["Once upon a time there was a cat."])["nats_per_token"]
    """
    model = model if isinstance(model, Model) else load(model)
    tokenizer, began = model.text_tokenizer(), time.perf_counter()
    if isinstance(data, str | Path):
        text = read_documents(data, tokenizer, split=split)
    else:
        text = tokenize("texts", data, tokenizer)
    work = measure.measurement_of(model, text, merge_settings(How(), how))
    tallies = deque(measure.run_measurement(work), maxlen=1)  # only the last one is whole
    if not tallies:
        raise UserError("nothing was measured: the data holds no row to score.")
    return measure.result(work, tallies[-1], seconds=time.perf_counter() - began)


@dataclass(frozen=True)
class Score:
    """−log p of a text, or an upper bound on it."""

    nats: float
    standard_error: float  # Monte Carlo, in nats; 0: the number is exact
    tokens: int  # that were scored

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens


@torch.inference_mode()
def score(model: Model | str | Path, texts: Sequence[str], *, passes: int = 16, seed: int = 0) -> list[Score]:
    """−log p of each text in nats, or an upper bound on it, as `POST /v1/score` gives it.

    `passes` are the forward passes per text of a model whose number is random; an exact one takes one.

    >>> [one.nats for one in unmask.score("stories", ["The cat sat.", "Cat the sat."])]
    """
    if isinstance(texts, str):
        raise UserError("give a list of texts to score: score(model, [text]).")
    if passes < 1:
        raise UserError(f"a score needs at least one pass; saw {passes}.")
    model = model if isinstance(model, Model) else load(model)
    how = estimator(objective=model.objective.bounded(), parts=model.parts, state=model.state)
    scores = []
    for number, text in enumerate(texts):
        row = scored_row(model, text, None, number)
        rows = [row] * (passes if how.chance else 1)  # the numbers of masks of equal rows are stratified
        tallies = passes_over(NetworkView(model.network), rows, how, mask=model.mask, seed=seed, device=model.device)
        whole = summary(next(tally for tally in tallies if tally.complete))
        nats, error = (value * row.scored for value in (whole.nats_per_token, whole.standard_error))
        scores.append(Score(nats, error, row.scored))
    return scores
