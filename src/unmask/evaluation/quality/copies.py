"""Copies: how much of a sample occurs word for word in the training text.

n-grams are compared by 64-bit hashes, for all windows of one length in log n vectorised steps. The parts of a copied
window are copied too, so the longest copy is found by binary search.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from unmask.evaluation.quality.variety import Number, mean_number

GRAM = 8  # words: shorter matches may be coincidence
FACTOR = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Copies:
    share: Number  # of a sample's words that are in a copied run of 8 words or more
    longest: Number  # words of a sample's longest copy
    most: int  # words of the longest copy of all
    text: str  # that copy


class WordIds:
    """Words as numbers, the same for samples and training text."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, text: str) -> np.ndarray:
        return np.array([self.ids.setdefault(word, len(self.ids)) for word in text.split()], np.int64)


def copies(samples: Sequence[str], training: Iterable[str]) -> Copies:
    """How much of the samples occurs in the training documents."""
    words = WordIds()
    rows = [words(text) for text in samples]
    corpus = _join_documents([words(text) for text in training])
    values = np.random.Generator(np.random.Philox(key=0)).integers(0, 2**64, len(words.ids) + 1, np.uint64)
    known = cache(lambda n: np.unique(hashes(values[corpus], n)))  # most samples need the same few lengths
    inside = [values[row] for row in rows]
    longest = [longest_copy(row, known) for row in inside]
    which = int(np.argmax([size for size, _ in longest]))
    size, start = longest[which]
    return Copies(
        share=mean_number([_copied_share(row, known) for row in inside]),
        longest=mean_number([float(size) for size, _ in longest]),
        most=size,
        text=" ".join(samples[which].split()[start : start + size]),
    )


def hashes(values: np.ndarray, n: int) -> np.ndarray:
    """A hash of each window of n values: Σ value_j · factor^j, added up by doubling."""
    if len(values) < n:
        return np.zeros(0, np.uint64)
    total = np.zeros(len(values) - n + 1, np.uint64)
    part, size, at = values, 1, 0
    rest = n
    while rest:
        if rest & 1:
            total += part[at : at + len(total)] * _power(at)
            at += size
        rest >>= 1
        if rest:
            part = part[:-size] + part[size:] * _power(size)
            size *= 2
    return total


def among(some: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which of some values are known; `known` is sorted and long, so each is found by binary search."""
    if not len(known):
        return np.zeros(len(some), bool)
    places = np.minimum(np.searchsorted(known, some), len(known) - 1)
    return known[places] == some


def _power(n: int) -> np.uint64:
    return np.uint64(pow(FACTOR, n, 2**64))


def longest_copy(row: np.ndarray, known: Callable[[int], np.ndarray]) -> tuple[int, int]:
    """The size of the longest window of a row that is known, and where it starts; `known(n)` are hashes."""
    size, start = 0, 0
    step = 1 << max(len(row), 1).bit_length() - 1
    while step:
        starts = np.flatnonzero(among(hashes(row, size + step), known(size + step)))
        if len(starts):
            size, start = size + step, int(starts[0])
        step //= 2
    return size, start


def _copied_share(row: np.ndarray, known: Callable[[int], np.ndarray]) -> float:
    """The share of the row that is in copied windows."""
    copied = among(hashes(row, GRAM), known(GRAM))
    covered = np.convolve(copied, np.ones(GRAM)) > 0 if len(copied) else np.zeros(len(row))
    return float(covered.mean()) if len(row) else 0.0


def _join_documents(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Documents in one row, separated by the last value, which no sample contains."""
    wall = np.array([-1])
    return np.concatenate([part for row in rows for part in (row, wall)]) if rows else wall
