"""Generative perplexity: what a judge thinks of samples. Three quantities bear that name; ours say which they are.

    pooled    as the MDLM reference counts: blocks of the judge's context, of each block all tokens but eos, and
              its first eos; exp of the mean over all these tokens
    mean      the mean over samples of each sample's own perplexity, every token counted (as SEDD's code does)
    sliding   a window that moves by half a context, so that tokens have context; no eos; exp of the mean over tokens

The first token of a block (sliding: of a sample) has nothing before it and is not scored. No sample is dropped.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError, unknown
from unmask.evaluation.likelihood import error_bars
from unmask.evaluation.quality.judges import Judge, costs
from unmask.text.corpus.passages import windows

MEANS = {
    "pooled": "exp of the mean over all tokens that are not eos and the first eos of each block, as in MDLM",
    "mean": "mean over samples of their perplexities, every token counted, as in SEDD",
    "sliding": "exp of the mean over all tokens that are not eos, sliding window of half a context",
}
CONTEXT = 1024  # tokens of a block at most: what the published numbers use


@dataclass(frozen=True)
class Perplexity:
    """A generative perplexity, and how far another set of samples may lie from it."""

    definition: str
    perplexity: float
    standard_error: float  # over samples
    interval: tuple[float, float]  # 95 %
    tokens: int  # that were counted
    means: str


@dataclass(frozen=True)
class Read:
    """Samples as a judge read them: of each sample the ids, and what each cost (NaN: not scored)."""

    rows: Sequence[np.ndarray]
    blocks: Sequence[np.ndarray]  # nats, each block read by itself
    sliding: Sequence[np.ndarray]  # nats, a window moving over the sample
    context: int
    eos: int | None
    cut: int  # tokens that were not read, by the wish of the reader


def spelled(judge: Judge, documents: Sequence[str]) -> np.ndarray:
    """A sample in the judge's ids: its documents, with the judge's eos between them."""
    ids: list[int] = []
    for number, text in enumerate(documents):
        if number and judge.eos is not None:
            ids.append(judge.eos)
        ids += judge.encode(text) if text else []
    return np.array(ids, np.int64)


def read(
    judge: Judge,
    samples: Sequence[Sequence[str]],
    *,
    context: int = 0,
    most: int = 0,
    after: Callable[[int], None] = lambda done: None,
) -> Read:
    """Let a judge read samples, each a list of documents; `most` tokens of each (0: all)."""
    context = min(context or CONTEXT, judge.most)
    if context < 2:
        raise UserError(f"a judge needs a context of at least 2 tokens; saw {context}.")
    whole = [spelled(judge, documents) for documents in samples]
    rows = [row[:most] if most else row for row in whole]
    if not any(len(row) > 1 for row in rows):
        raise UserError(f"of {len(rows)} samples not one has two tokens for the judge to read.")
    cuts = [[(start, 1, start + context) for start in range(0, len(row), context)] for row in rows]
    blocks = _scored(judge, rows, cuts, after)
    sliding = blocks
    if any(len(row) > context for row in rows):
        half = max(1, context // 2)
        cuts = [list(windows(len(row), length=context, stride=half, given=1)) for row in rows]
        sliding = _scored(judge, rows, cuts, after)
    return Read(rows, blocks, sliding, context, judge.eos, sum(map(len, whole)) - sum(map(len, rows)))


def _scored(
    judge: Judge,
    rows: Sequence[np.ndarray],
    cuts: Sequence[Sequence[tuple[int, int, int]]],
    after: Callable[[int], None],
) -> list[np.ndarray]:
    """Nats of every token; `cuts` are (start, given, stop) for each row: what is given is not scored."""
    pieces = [row[start:stop] for row, cut in zip(rows, cuts, strict=True) for start, _, stop in cut]
    paid = iter(costs(judge, pieces, after=after))
    found = [np.full(len(row), np.nan) for row in rows]
    for nats, cut in zip(found, cuts, strict=True):
        for start, given, stop in cut:
            nats[start + given : stop] = next(paid)[given:]
    return found


def perplexities(read: Read) -> dict[str, Perplexity]:
    """Every definition, by name."""
    if len(read.rows) < 2:
        raise UserError(f"an error bar over samples needs at least 2 of them; saw {len(read.rows)}.")
    return {name: perplexity(read, name) for name in MEANS}


def perplexity(read: Read, definition: str) -> Perplexity:
    """Generative perplexity by one definition."""
    if definition not in MEANS:
        raise unknown("definition of generative perplexity", definition, MEANS)
    nats = read.sliding if definition == "sliding" else read.blocks
    counted = [~np.isnan(paid) & _counts(row, read, definition) for row, paid in zip(read.rows, nats, strict=True)]
    tokens = np.array([mask.sum() for mask in counted], float)
    total = np.array([paid[mask].sum() for paid, mask in zip(nats, counted, strict=True)])
    if tokens.sum() == 0:
        raise UserError("the samples hold nothing but eos: there is no token to score.")
    found = _of_samples(total, tokens) if definition == "mean" else _of_tokens(total, tokens)
    return Perplexity(definition, *found, int(tokens.sum()), MEANS[definition])


def _counts(row: np.ndarray, read: Read, definition: str) -> np.ndarray:
    """Which tokens a definition counts."""
    if definition == "mean" or read.eos is None:
        return np.ones(len(row), bool)
    kept = row != read.eos
    if definition == "pooled":
        for start in range(0, len(row), read.context):
            ends = np.flatnonzero(~kept[start : start + read.context])
            kept[start + ends[:1]] = True
    return kept


def _of_tokens(total: np.ndarray, tokens: np.ndarray) -> tuple[float, float, tuple[float, float]]:
    """exp of nats a token; samples are the draws, for the tokens of one are not independent."""
    mean = total.sum() / tokens.sum()
    error = error_of_ratio(total, tokens)
    low, high = error_bars.interval(mean, error, max(len(total) - 1, 1))
    return _exp(mean), _exp(mean) * error, (_exp(low), _exp(high))


def _of_samples(total: np.ndarray, tokens: np.ndarray) -> tuple[float, float, tuple[float, float]]:
    each = np.exp(np.minimum(total[tokens > 0] / tokens[tokens > 0], 700.0))  # of an empty sample there is none
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
