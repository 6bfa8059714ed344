"""IsoFLOP curves: the loss by size of network at each budget, its lowest point, and how that moves with the budget.

At one budget, loss is fitted by a parabola in log N (N parameters). Over budgets C, the best sizes by N ∝ C^a and the
losses there by loss ∝ C^−b. Intervals come from a bootstrap: the residuals of the parabolas are drawn again, with
replacement and scaled for the three coefficients that each parabola uses up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

DRAWS = 2000  # of the bootstrap
COVERED = (5.0, 95.0)  # percentiles: an interval of 90 %

Points = Mapping[float, Sequence[tuple[float, float]]]  # (parameters, loss) of each budget in FLOPs


@dataclass(frozen=True)
class Valley:
    """The lowest point of the curve of one budget."""

    flops: float
    parameters: float
    loss: float
    inside: bool  # whether it lies between the smallest and the largest network that was trained


@dataclass(frozen=True)
class Exponent:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Scaling:
    """What the curves of one system say."""

    group: str
    valleys: tuple[Valley, ...]
    size: Exponent | None  # a of N ∝ C^a; None: fewer than two valleys that lie inside
    loss: Exponent | None  # b of loss ∝ C^−b


def parabola(points: Sequence[tuple[float, float]]) -> np.ndarray:
    """Coefficients in log N, the highest power first."""
    sizes, losses = np.array(points, float).T
    return np.polyfit(np.log(sizes), losses, 2)


def valley_of(flops: float, points: Sequence[tuple[float, float]], coefficients: np.ndarray) -> Valley | None:
    """The lowest point; None if the curve has none."""
    curve, slope, level = coefficients
    if curve <= 0:
        return None
    at = -slope / (2 * curve)
    sizes = [size for size, _ in points]
    inside = bool(min(sizes) <= np.exp(at) <= max(sizes))
    return Valley(flops, float(np.exp(at)), float(level - slope**2 / (4 * curve)), inside)


def valleys(points: Points) -> tuple[Valley, ...]:
    candidates = (valley_of(flops, some, parabola(some)) for flops, some in sorted(points.items()) if len(some) > 3)
    return tuple(one for one in candidates if one is not None)


def powers(points: Sequence[Valley]) -> tuple[float, float] | None:
    """a and b by least squares over the valleys that lie inside; None with fewer than two of them."""
    inside = [one for one in points if one.inside]
    if len(inside) < 2:
        return None
    budgets = np.log([one.flops for one in inside])
    a = np.polyfit(budgets, np.log([one.parameters for one in inside]), 1)[0]
    b = np.polyfit(budgets, np.log([one.loss for one in inside]), 1)[0]
    return float(a), float(-b)


def scaling(group: str, points: Points, *, draws: int = DRAWS, seed: int = 0) -> Scaling:
    """The valleys of a system's curves and the two exponents with intervals of 90 %."""
    minima = valleys(points)
    central = powers(minima)
    if central is None:
        return Scaling(group, minima, None, None)
    source = np.random.default_rng(seed)
    drawn = [one for one in (powers(valleys(redraw(points, source))) for _ in range(draws)) if one is not None]
    low, high = np.percentile(np.array(drawn), COVERED, axis=0)
    size, loss = (Exponent(central[i], float(low[i]), float(high[i])) for i in range(2))
    return Scaling(group, minima, size, loss)


def redraw(points: Points, source: np.random.Generator) -> dict[float, list[tuple[float, float]]]:
    """The curves with residuals drawn again from those of all budgets."""
    fits = {flops: parabola(some) for flops, some in points.items() if len(some) > 3}
    residuals = np.concatenate(
        [
            np.array([loss - np.polyval(fit, np.log(size)) for size, loss in points[flops]])
            * (len(points[flops]) / (len(points[flops]) - 3)) ** 0.5
            for flops, fit in fits.items()
        ]
    )
    return {
        flops: [(size, float(np.polyval(fit, np.log(size)) + source.choice(residuals))) for size, _ in points[flops]]
        for flops, fit in fits.items()
    }


def fit_scaling(rows: Sequence[Mapping[str, Any]], number: int) -> list[dict[str, Any]]:
    """The scaling of each group of a table's rows, from the column `number`, as plain values."""
    groups: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for row in rows:
        value = row["cells"][number]["value"]
        if value is not None and row["trained"] is not None:
            budget = row["changes"].get("flops", row["trained"]["flops"])
            groups.setdefault(row["group"], {}).setdefault(float(budget), []).append(
                (row["trained"]["parameters"], value)
            )
    return [asdict(scaling(group, points)) for group, points in groups.items()]
