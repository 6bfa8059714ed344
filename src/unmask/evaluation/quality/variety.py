"""Variety of samples. A judge prefers repetitive text, so these are reported with every perplexity.

entropy        of a sample's own token counts, in nats; falls when a few tokens take over
distinct-n     number of different n-grams over number of n-grams, in all samples
repetition     share of a sample's 4-grams that occur earlier in it
self-overlap   share of a sample's 4-grams that occur in another sample too
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.evaluation.quality.perplexity import average

GRAM = 4  # tokens of the n-grams of repetition and self-overlap
LEAST = 0.6  # share of log(tokens) that the entropy of text seldom falls below
REAL = 0.9  # share of the entropy of real text of the same length


@dataclass(frozen=True)
class Number:
    """A mean over samples and its standard error."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class Variety:
    entropy: Number
    repetition: Number
    self_overlap: Number
    distinct: dict[int, Number]


def variety(rows: Sequence[np.ndarray]) -> Variety:
    """All measures, for samples given as ids."""
    of_each = [grams(row, GRAM) for row in rows]
    holders = Counter(gram for each in of_each for gram in set(each))
    repeated = [1 - len(set(each)) / len(each) if each else 0.0 for each in of_each]
    shared = [sum(holders[gram] > 1 for gram in each) / len(each) if each else 0.0 for each in of_each]
    return Variety(
        entropy=mean_number([row_entropy(row) for row in rows]),
        repetition=mean_number(repeated),
        self_overlap=mean_number(shared),
        distinct={n: distinct(rows, n) for n in (1, 2, 3, 4)},
    )


def row_entropy(row: np.ndarray) -> float:
    """−Σ p log p over the relative frequencies p of the row's tokens, in nats; 0 for an empty row."""
    if not len(row):
        return 0.0
    share = np.unique(row, return_counts=True)[1] / len(row)
    return float(-(share * np.log(share)).sum())


def grams(row: np.ndarray, n: int) -> list[tuple[int, ...]]:
    ids = row.tolist()
    return list(zip(*(ids[i:] for i in range(n)), strict=False))


def distinct(rows: Sequence[np.ndarray], n: int) -> Number:
    """Different n-grams over all n-grams, with a jackknife error over samples."""
    of_each = [grams(row, n) for row in rows]
    holders = Counter(gram for each in of_each for gram in set(each))
    total, different = sum(map(len, of_each)), len(holders)
    if not total:
        return Number(0.0, 0.0)
    own = [sum(holders[gram] == 1 for gram in set(each)) for each in of_each]
    left = [total - len(each) for each in of_each]
    without = np.array([(different - lost) / rest for lost, rest in zip(own, left, strict=True) if rest])
    error = float(np.sqrt(np.square(without - without.mean()).sum() * (len(without) - 1) / max(len(without), 1)))
    return Number(different / total, error)


def collapse_warning(entropy: float, rows: Sequence[np.ndarray], real: float | None) -> str | None:
    """A warning if the entropy is far below that of text; `real` is that of real text of that length, if known."""
    length = float(np.mean([len(row) for row in rows]))
    if real is not None and entropy < REAL * real:
        return (
            f"entropy has collapsed: {entropy:.2f} nats per sample, real text of the same length has {real:.2f}. "
            "The perplexity is low because the text is repetitive; do not report it alone."
        )
    if real is None and entropy < LEAST * np.log(max(length, 2.0)):
        return (
            f"entropy looks collapsed: {entropy:.2f} nats per sample of {length:.0f} tokens, where text seldom has "
            f"less than {LEAST * np.log(max(length, 2.0)):.2f}. Give real text with --train to compare."
        )
    return None


def mean_number(values: Sequence[float]) -> Number:
    return Number(*average(np.array(values)))
