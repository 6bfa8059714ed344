"""Scores of predictions: accuracy, F1 and Matthews of classes; Pearson, Spearman and the error of numbers.

Each takes the truth and the predictions as arrays of one dimension. Classes are whole numbers from 0. A correlation
that is 0/0 (one class for all, a constant) is 0, where scipy says NaN.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError, unknown


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The share of right answers."""
    return float((truth == predicted).mean())


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """2 TP/(2 TP + FP + FN) of class 1, of two."""
    return f1_of(truth == 1, predicted == 1)


def macro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The mean F1 of the classes that occur in either."""
    scores = [f1_of(truth == one, predicted == one) for one in np.union1d(truth, predicted)]
    return sum(scores) / len(scores)


def f1_of(truth: np.ndarray, predicted: np.ndarray) -> float:
    both = int((truth & predicted).sum())
    total = int(truth.sum() + predicted.sum())
    return 2 * both / total if total else 0.0


def matthews(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The Matthews correlation; of two classes (TP TN − FP FN)/√((TP+FP)(TP+FN)(TN+FP)(TN+FN))."""
    n, right = len(truth), int((truth == predicted).sum())
    classes = np.union1d(truth, predicted)
    true = [int((truth == one).sum()) for one in classes]
    predictions = [int((predicted == one).sum()) for one in classes]
    above = right * n - sum(t * p for t, p in zip(true, predictions, strict=True))
    below = (n * n - sum(p * p for p in predictions)) * (n * n - sum(t * t for t in true))
    return above / math.sqrt(below) if below else 0.0


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The linear correlation."""
    a, b = truth - truth.mean(), predicted - predicted.mean()
    below = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    # A constant leaves a remainder of its rounding.
    constant = np.ptp(truth) == 0 or np.ptp(predicted) == 0
    return 0.0 if constant or not below else max(-1.0, min(1.0, float(a @ b) / below))


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The correlation of the ranks; equal values share the mean of their ranks."""
    return pearson(mean_ranks(truth), mean_ranks(predicted))


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def rmse(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The root mean squared error."""
    return float(np.sqrt(np.mean((truth - predicted) ** 2)))


@dataclass(frozen=True)
class Metric:
    """A score: what it compares, and which way is better."""

    of: Callable[[np.ndarray, np.ndarray], float]
    kinds: tuple[str, ...] = ("two classes", "several classes")
    lower: bool = False  # lower is better

    @property
    def title(self) -> str:
        return (self.of.__doc__ or "").rstrip(".")

    def better(self, one: float, other: float | None) -> bool:
        return other is None or (one < other if self.lower else one > other)


SCORES = {
    "accuracy": Metric(accuracy),
    "f1": Metric(f1, ("two classes",)),
    "macro_f1": Metric(macro_f1),
    "matthews": Metric(matthews),
    "pearson": Metric(pearson, ("numbers",)),
    "spearman": Metric(spearman, ("numbers",)),
    "rmse": Metric(rmse, ("numbers",), lower=True),
}
USUAL = {
    "two classes": ("accuracy", "f1", "matthews"),
    "several classes": ("accuracy", "macro_f1", "matthews"),
    "numbers": ("spearman", "pearson", "rmse"),
}


def chosen_scores(names: Sequence[str], kind: str) -> tuple[str, ...]:
    """The scores that are reported for two classes, several classes or numbers; the first one decides."""
    known = [name for name, score in SCORES.items() if kind in score.kinds]
    for name in names:
        if name not in SCORES:
            raise unknown("metric", name, SCORES)
        if name not in known:
            raise UserError(f"the metric {name} does not score {kind}. Those that do: {', '.join(known)}.")
    return tuple(dict.fromkeys(names or USUAL[kind]))


def scores_of(names: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    return {name: SCORES[name].of(truth, predicted) for name in names}
