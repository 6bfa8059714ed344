"""Paired differences: two models on the same tokens, so that what both find hard cancels."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmask.errors import UserError

BLOCK = 1024  # tokens at least of a block: short documents are joined to such ones, and longer ones stay whole
FEWEST = 8  # blocks; a text of fewer documents is cut into blocks wherever they end


@dataclass(frozen=True)
class Paired:
    """A difference, second less first: in nats per token, or of a score."""

    difference: float
    error: float  # standard error over blocks of whole documents, and over seeds where there are several
    tokens: int
    seeds: int


class Scored(NamedTuple):
    """The tokens that a measurement scored, in order."""

    ids: np.ndarray
    nats: np.ndarray
    document: np.ndarray  # the number of the document in which the row of each token begins

    def last(self, count: int) -> "Scored":
        return Scored(*(array[len(array) - count :] for array in self))


def read_scored(path: Path) -> Scored:
    """The tokens in the file that `unmask evaluate --each-token --write` made."""
    ids: list[int] = []
    nats: list[float] = []
    documents: list[int] = []
    for line in nats_lines(path):
        ids += line["ids"]
        nats += line["token_nats"]
        documents += [line["document"]] * len(line["ids"])
    return Scored(np.array(ids), np.array(nats), np.array(documents))


def nats_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            content = json.loads(line)
            if "token_nats" not in content:
                raise UserError(f"{path} has no nats per token.")
            yield content


def paired_difference(first: Sequence[Path], second: Sequence[Path]) -> Paired | None:
    """The mean difference of two rows, each measured for some seeds; None if they did not score the same tokens."""
    pairs = []
    document = np.zeros(0)
    for one, other in zip(first, second, strict=False):
        a, b = read_scored(one), read_scored(other)
        length = min(len(a.ids), len(b.ids))
        # Causal rows do not score the first token of a text: it has nothing before it.
        if not length or abs(len(a.ids) - len(b.ids)) > 1:
            return None
        a, b = a.last(length), b.last(length)
        if not np.array_equal(a.ids, b.ids):
            return None
        pairs.append(b.nats - a.nats)
        document = a.document if len(pairs) == 1 else document
    return of_differences(pairs, document) if pairs else None


def of_differences(pairs: Sequence[np.ndarray], document: np.ndarray) -> Paired:
    """Differences per token, one array per seed: their mean, and its error from blocks of text and from seeds.

    `document` is the number of the document of each token of the first array.
    """
    means = [float(one.mean()) for one in pairs]
    same = len({len(one) for one in pairs}) == 1
    over_text = block_error(np.mean(pairs, axis=0) if same else pairs[0], document)
    over_seeds = float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else 0.0
    return Paired(float(np.mean(means)), math.hypot(over_text, over_seeds), len(pairs[0]), len(pairs))


def by_trial(first: Sequence[float], second: Sequence[float]) -> Paired | None:
    """The mean difference of scores, trial by trial, with its standard error; None without two trials of both."""
    if len(first) != len(second) or len(first) < 2:
        return None
    each = np.subtract(second, first)
    return Paired(float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each))), 0, len(each))


def block_error(values: np.ndarray, document: np.ndarray) -> float:
    """The standard error of the mean of values that depend on each other within a document, from sums of blocks."""
    block = blocks_of(document)
    count = int(block[-1]) + 1
    if count < 2:
        return math.inf
    sums = np.bincount(block, values - values.mean())
    return float(np.sqrt(np.square(sums).sum() * count / (count - 1)) / len(values))


def blocks_of(document: np.ndarray) -> np.ndarray:
    """The number of the block of each token: whole documents, neighbours joined until they have `BLOCK` tokens.

    Of a text with less than `FEWEST` such blocks, pieces of `BLOCK` tokens, or of an eighth of the text if that is
    shorter: it cannot tell how far other documents are from these.
    """
    begins = np.flatnonzero(np.diff(document, prepend=document[0] - 1))
    number, last = np.zeros(len(document), dtype=int), 0
    for begin in begins.tolist():
        if begin - last >= BLOCK and len(document) - begin >= BLOCK:
            number[begin:] += 1
            last = begin
    if number[-1] + 1 >= FEWEST:
        return number
    return np.arange(len(document)) // max(1, min(BLOCK, len(document) // FEWEST))
