"""Generative perplexity: the perplexity of samples under a judge, by one of three definitions in use.

    pooled    as in the MDLM reference: samples are cut into blocks of the judge's context; exp of the mean over all
              tokens that are not eos and the first eos of each block
    mean      the mean over samples of each sample's own perplexity, all tokens counted (as in SEDD's code)
    sliding   a window that moves by half a context, so that tokens have context; exp of the mean, without eos

The first token of a block (sliding: of a sample) has nothing before it and is not scored. No sample is dropped.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError, unknown
from unmask.evaluation.likelihood import error_bars
from unmask.evaluation.quality.judges import Judge, judged_nats
from unmask.text.stretch import windows

MEANS = {
    "pooled": "exp of the mean over all tokens that are not eos and the first eos of each block, as in MDLM",
    "mean": "mean over samples of their perplexities, every token counted, as in SEDD",
    "sliding": "exp of the mean over all tokens that are not eos, sliding window of half a context",
}
CONTEXT = 1024  # most tokens per block, as in the published numbers


@dataclass(frozen=True)
class Perplexity:
    """A generative perplexity and its error over samples."""

    definition: str
    perplexity: float
    standard_error: float  # over samples
    interval: tuple[float, float]  # 95 %
    tokens: int  # tokens counted
    means: str


@dataclass(frozen=True)
class Read:
    """Samples scored by a judge: the ids of each sample and their nats (NaN: not scored)."""

    rows: Sequence[np.ndarray]
    blocks: Sequence[np.ndarray]  # nats, each block scored separately
    sliding: Sequence[np.ndarray]  # nats, a window moving over the sample
    context: int
    eos: int | None
    cut: int  # tokens beyond `most`, which were not scored


def sample_ids(judge: Judge, documents: Sequence[str]) -> np.ndarray:
    """A sample in the judge's ids: its documents, with the judge's eos between them."""
    ids: list[int] = []
    for number, text in enumerate(documents):
        if number and judge.eos is not None:
            ids.append(judge.eos)
        ids += judge.encode(text) if text else []
    return np.array(ids, np.int64)


def read_by_judge(
    judge: Judge,
    samples: Sequence[Sequence[str]],
    *,
    context: int = 0,
    most: int = 0,
    after: Callable[[int], None] = lambda done: None,
) -> Read:
    """Score samples, each a list of documents, with a judge; at most `most` tokens of each (0: all)."""
    context = min(context or CONTEXT, judge.most)
    if context < 2:
        raise UserError(f"a judge needs a context of at least 2 tokens; saw {context}.")
    whole = [sample_ids(judge, documents) for documents in samples]
    rows = [row[:most] if most else row for row in whole]
    if not any(len(row) > 1 for row in rows):
        raise UserError(f"none of the {len(rows)} samples has two tokens for the judge to score.")
    cuts = [[(start, 1, start + context) for start in range(0, len(row), context)] for row in rows]
    blocks = _token_nats(judge, rows, cuts, after)
    sliding = blocks
    if any(len(row) > context for row in rows):
        half = max(1, context // 2)
        cuts = [list(windows(len(row), length=context, stride=half, given=1)) for row in rows]
        sliding = _token_nats(judge, rows, cuts, after)
    return Read(rows, blocks, sliding, context, judge.eos, sum(map(len, whole)) - sum(map(len, rows)))


def _token_nats(
    judge: Judge,
    rows: Sequence[np.ndarray],
    cuts: Sequence[Sequence[tuple[int, int, int]]],
    after: Callable[[int], None],
) -> list[np.ndarray]:
    """Nats of every token; `cuts` are (start, given, stop) for each row: given tokens are not scored."""
    pieces = [row[start:stop] for row, cut in zip(rows, cuts, strict=True) for start, _, stop in cut]
    paid = iter(judged_nats(judge, pieces, after=after))
    nats_of_rows = [np.full(len(row), np.nan) for row in rows]
    for nats, cut in zip(nats_of_rows, cuts, strict=True):
        for start, given, stop in cut:
            nats[start + given : stop] = next(paid)[given:]
    return nats_of_rows


def perplexities(read: Read) -> dict[str, Perplexity]:
    """Every definition, by name."""
    if len(read.rows) < 2:
        raise UserError(f"an error bar over samples needs at least 2 of them; saw {len(read.rows)}.")
    return {name: perplexity(read, name) for name in MEANS}


def perplexity(read: Read, definition: str) -> Perplexity:
    if definition not in MEANS:
        raise unknown("definition of generative perplexity", definition, MEANS)
    nats = read.sliding if definition == "sliding" else read.blocks
    counted = [~np.isnan(paid) & _counts(row, read, definition) for row, paid in zip(read.rows, nats, strict=True)]
    tokens = np.array([mask.sum() for mask in counted], float)
    total = np.array([paid[mask].sum() for paid, mask in zip(nats, counted, strict=True)])
    if tokens.sum() == 0:
        raise UserError("the samples contain only eos: there is no token to score.")
    estimate = _of_samples(total, tokens) if definition == "mean" else _of_tokens(total, tokens)
    return Perplexity(definition, *estimate, int(tokens.sum()), MEANS[definition])


def _counts(row: np.ndarray, read: Read, definition: str) -> np.ndarray:
    if definition == "mean" or read.eos is None:
        return np.ones(len(row), bool)
    counted = row != read.eos
    if definition == "pooled":
        for start in range(0, len(row), read.context):
            ends = np.flatnonzero(~counted[start : start + read.context])
            counted[start + ends[:1]] = True
    return counted


def _of_tokens(total: np.ndarray, tokens: np.ndarray) -> tuple[float, float, tuple[float, float]]:
    """exp of nats per token; the error is over samples, because the tokens of a sample are not independent."""
    mean = total.sum() / tokens.sum()
    error = error_of_ratio(total, tokens)
    low, high = error_bars.interval(mean, error, max(len(total) - 1, 1))
    return _exp(mean), _exp(mean) * error, (_exp(low), _exp(high))


def _of_samples(total: np.ndarray, tokens: np.ndarray) -> tuple[float, float, tuple[float, float]]:
    each = np.exp(np.minimum(total[tokens > 0] / tokens[tokens > 0], 700.0))  # empty samples have no perplexity
    mean, error = average(each)
    return mean, error, error_bars.interval(mean, error, max(len(each) - 1, 1))


def error_of_ratio(above: np.ndarray, below: np.ndarray) -> float:
    """The standard error of Σ above / Σ below over independent draws."""
    if len(above) < 2:
        return math.inf
    rest = above - below * (above.sum() / below.sum())
    return float(np.sqrt(np.square(rest).sum() * len(rest) / (len(rest) - 1)) / below.sum())


def average(values: np.ndarray) -> tuple[float, float]:
    """A mean and its standard error."""
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return float(values.mean()), float(error)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
