"""Error bars: the Monte Carlo error, and the error of the choice of text.

The times of the rows are stratified, which removes the variance between few and many masks. So a smooth curve of nats
against time, shared by all rows, is fitted and subtracted before deviations are squared. Deviations are summed per
row, because the tokens of a row are not independent.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.polynomial.legendre import legder, legval

DEGREE = 5  # of the curve, at most
ENOUGH = 4  # observations per coefficient of the curve
Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class FittedCurve:
    """A polynomial in t, nats per token, fitted to all rows and passes by least squares."""

    coefficients: np.ndarray  # of Legendre polynomials in 2t − 1, from degree 0
    deviations: np.ndarray  # (passes, rows): nats minus the fit; with several passes also minus the row's mean
    leverage: np.ndarray  # (passes, rows): how far each observation draws the fit to itself
    freedom: int  # observations minus coefficients

    def at(self, t: np.ndarray) -> np.ndarray:
        return legval(2 * t - 1, self.coefficients)

    def slope(self, t: np.ndarray) -> np.ndarray:
        return 2 * legval(2 * t - 1, legder(self.coefficients))


def fitted_curve(nats: np.ndarray, tokens: np.ndarray, t: np.ndarray) -> FittedCurve:
    """The mean curve of nats (passes, rows) against their times.

    With several passes each row has a level of its own, and the curve is fitted to the differences within rows.
    """
    passes, rows = nats.shape
    several = passes > 1
    observed = rows * (passes - 1) if several else rows
    degree = min(DEGREE, observed // ENOUGH)
    lowest = 1 if several else 0  # the rows' levels take the place of the constant
    columns = [legval(2 * t - 1, np.eye(degree + 1)[d]) * tokens for d in range(lowest, degree + 1)]
    design = np.stack(columns, -1) if columns else np.zeros((passes, rows, 0))
    if several:
        nats, design = nats - nats.mean(0), design - design.mean(0)
    basis, size, turn = np.linalg.svd(design.reshape(nats.size, len(columns)), full_matrices=False)
    used = size > 1e-9 * size.max(initial=0.0)  # equal times cannot tell polynomials apart
    basis, size, turn = basis[:, used], size[used], turn[used]
    along = basis.T @ nats.ravel()
    coefficients = np.concatenate([np.zeros(lowest), turn.T @ (along / size)])
    leverage = np.square(basis).sum(1).reshape(nats.shape) + several / passes
    deviations = nats - (basis @ along).reshape(nats.shape)
    return FittedCurve(coefficients, deviations, leverage, observed - len(size))


def monte_carlo(nats: np.ndarray, tokens: np.ndarray, t: np.ndarray) -> tuple[float, float]:
    """The Monte Carlo standard error in nats per token, and its degrees of freedom.

    Squared deviations are divided by 1 − leverage: without bias where all vary alike, and nearly so where they do not
    [MacKinnon and White 1985, HC2]. What the curve itself adds is its variance within the cells of the stratified
    times, 1/rows wide. A single pass cannot separate the Monte Carlo error from the variance between rows, so both
    are counted: the error is then overestimated. Infinite if there is nothing to compare.
    """
    passes, rows = nats.shape
    curve = fitted_curve(nats, tokens, t)
    if curve.freedom < 1:
        return float("inf"), 1.0
    of_rows = np.square(curve.deviations) / (1 - curve.leverage).clip(1e-9)
    within_cells = np.square(tokens * curve.slope(t).mean(0)) / (12 * rows**2)
    variance = of_rows.sum() / passes**2 + within_cells.sum()
    return float(np.sqrt(variance) / tokens.sum()), float(curve.freedom)


def of_weighted_orders(nats: np.ndarray, tokens: np.ndarray) -> float:
    """The standard error of −log mean exp(−nats) over the passes, by the jackknife over passes."""
    passes = len(nats)
    if passes < 2:
        return float("inf")
    without = np.stack([log_mean(np.delete(nats, i, 0)) for i in range(passes)])
    variance = np.square(without - without.mean(0)).sum() * (passes - 1) / passes
    return float(np.sqrt(variance) / tokens.sum())


def log_mean(nats: np.ndarray) -> np.ndarray:
    """−log of the mean over passes of exp(−nats), for each row: the weighted orders."""
    low = nats.min(0)
    return low - np.log(np.exp(low - nats).mean(0))


def tangent_bound(nats: np.ndarray) -> np.ndarray:
    """A lower bound on −log p of each row, in expectation: −log ψ − p_s/ψ + 1, for any ψ > 0. [TUBE]

    nats (passes, rows) are −log p_s of random orders s, and p = E p_s. The logarithm lies below its tangent at ψ, the
    mean of the other passes. It is raised by its own relative variance: too small a ψ costs more than too great one.
    """
    bounds = []
    for i, own in enumerate(nats):
        others = np.delete(nats, i, 0)
        mean = log_mean(others)
        level = mean - np.log1p(np.exp(mean - others).var(0) / len(others))  # −log ψ
        bounds.append(level - np.exp(np.minimum(level - own, 700.0)) + 1)
    return np.mean(bounds, 0)


def of_tangent_bound(nats: np.ndarray, tokens: np.ndarray) -> float:
    """Its standard error by the jackknife over passes."""
    passes = len(nats)
    if passes < 3:
        return float("inf")
    without = np.stack([tangent_bound(np.delete(nats, i, 0)) for i in range(passes)]).sum(1)
    return float(np.sqrt(np.square(without - without.mean()).sum() * (passes - 1) / passes) / tokens.sum())


def of_the_data(nats: np.ndarray, tokens: np.ndarray, t: np.ndarray, cluster: np.ndarray) -> float:
    """The standard error of the choice of text, Monte Carlo error included: as if rows were drawn from a larger text.

    Rows of one cluster (a document) count as one draw.
    """
    curve = fitted_curve(nats, tokens, t)
    rest = (nats - tokens * curve.at(t)).mean(0)
    if len(nats) == 1:  # the curve was drawn to these very rows: give back what it took, but for the mean
        rest = rest / np.sqrt((1 - curve.leverage[0] + np.square(tokens) / np.square(tokens).sum()).clip(1e-9))
    centred = rest - tokens * (rest.sum() / tokens.sum())
    sums = np.bincount(np.unique(cluster, return_inverse=True)[1], centred)
    if len(sums) < 2:
        return float("inf")
    return float(np.sqrt(np.square(sums).sum() * len(sums) / (len(sums) - 1)) / tokens.sum())


def interval(mean: float, error: float, freedom: float) -> tuple[float, float]:
    """The 95 % interval, by Student's quantile to two terms of its expansion in 1 / freedom."""
    quantile = Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)
    return mean - quantile * error, mean + quantile * error
