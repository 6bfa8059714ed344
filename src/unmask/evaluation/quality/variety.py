"""Variety: how rich samples are in themselves. A judge likes dull text, so these stand beside every perplexity.

entropy        of a sample's own token counts, in nats; falls when a few tokens take over
distinct-n     different n-grams of all samples over all of their n-grams
repetition     share of a sample's 4-grams that stood in it before
self-overlap   share of a sample's 4-grams that another sample holds too
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.evaluation.quality.perplexity import average

GRAM = 4  # tokens of the n-grams of repetition and self-overlap
LEAST = 0.6  # of log(tokens): what the entropy of text seldom falls below
REAL = 0.9  # of the entropy of real text as long


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
    """All of it, for samples given as ids."""
    of_each = [grams(row, GRAM) for row in rows]
    holders = Counter(gram for each in of_each for gram in set(each))
    repeated = [1 - len(set(each)) / len(each) if each else 0.0 for each in of_each]
    shared = [sum(holders[gram] > 1 for gram in each) / len(each) if each else 0.0 for each in of_each]
    return Variety(
        entropy=number([entropy(row) for row in rows]),
        repetition=number(repeated),
        self_overlap=number(shared),
        distinct={n: distinct(rows, n) for n in (1, 2, 3, 4)},
    )


def entropy(row: np.ndarray) -> float:
    """−Σ p log p over the shares p that each token has of the row, in nats; 0 for an empty one."""
    if not len(row):
        return 0.0
    share = np.unique(row, return_counts=True)[1] / len(row)
    return float(-(share * np.log(share)).sum())


def grams(row: np.ndarray, n: int) -> list[tuple[int, ...]]:
    ids = row.tolist()
    return list(zip(*(ids[i:] for i in range(n)), strict=False))


def distinct(rows: Sequence[np.ndarray], n: int) -> Number:
    """Different n-grams over all n-grams, with the error that leaving out each sample in turn tells."""
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


def collapsed(entropy: float, rows: Sequence[np.ndarray], real: float | None) -> str | None:
    """A warning where the entropy is far below that of text; `real` is that of real text as long, if known."""
    length = float(np.mean([len(row) for row in rows]))
    if real is not None and entropy < REAL * real:
        return (
            f"entropy has collapsed: {entropy:.2f} nats a sample, real text as long has {real:.2f}. The perplexity "
            "is low because the text is dull; do not read it alone."
        )
    if real is None and entropy < LEAST * np.log(max(length, 2.0)):
        return (
            f"entropy looks collapsed: {entropy:.2f} nats in samples of {length:.0f} tokens, where text seldom has "
            f"less than {LEAST * np.log(max(length, 2.0)):.2f}. Give real text with --train to compare with."
        )
    return None


def number(values: Sequence[float]) -> Number:
    return Number(*average(np.array(values)))
