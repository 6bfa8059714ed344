"""Error bars: the Monte Carlo error, and the error of the choice of text.

The times of the rows are stratified, which removes the variance between few and many masks: the mean curve of nats
against time is subtracted before deviations are squared. Deviations are summed per row, because the tokens of a row
are not independent.
"""

from statistics import NormalDist

import numpy as np

CELLS = 64  # the curve has at most this many cells
Z = NormalDist().inv_cdf(0.975)


def beside_the_curve(nats: np.ndarray, tokens: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, int]:
    """Nats (passes, rows) minus the mean curve at their times, times their tokens, and the number of cells used."""
    cells = max(1, min(CELLS, nats.size // 16))
    cell = np.minimum((t * cells).astype(int), cells - 1)
    weight = np.broadcast_to(tokens, nats.shape)
    paid = np.bincount(cell.ravel(), nats.ravel(), cells)
    share = np.bincount(cell.ravel(), weight.ravel(), cells)
    curve = paid / np.maximum(share, 1)
    return nats - tokens * curve[cell], int((share > 0).sum())


def monte_carlo(nats: np.ndarray, tokens: np.ndarray, t: np.ndarray) -> tuple[float, float]:
    """The Monte Carlo standard error in nats per token, and its degrees of freedom.

    It is estimated from the variance of each row between its passes. A single pass cannot separate that from the
    variance between rows, so both are counted: the error is then overestimated.
    """
    passes, rows = nats.shape
    rest, cells = beside_the_curve(nats, tokens, t)
    if passes > 1:
        rest = rest - rest.mean(0)
    freedom = max(rows * max(passes - 1, 1) - cells, 1)
    variance = np.square(rest).sum() / freedom * rows  # of the total nats of one pass
    return float(np.sqrt(variance / passes) / tokens.sum()), float(freedom)


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


def of_the_data(nats: np.ndarray, tokens: np.ndarray, t: np.ndarray, cluster: np.ndarray) -> float:
    """The standard error of the choice of text, Monte Carlo error included: as if rows were drawn from a larger text.

    Rows of one cluster (a document) count as one draw.
    """
    rest, _ = beside_the_curve(nats, tokens, t)
    centred = rest.mean(0) - tokens * (rest.mean(0).sum() / tokens.sum())
    sums = np.bincount(np.unique(cluster, return_inverse=True)[1], centred)
    if len(sums) < 2:
        return float("inf")
    return float(np.sqrt(np.square(sums).sum() * len(sums) / (len(sums) - 1)) / tokens.sum())


def interval(mean: float, error: float, freedom: float) -> tuple[float, float]:
    """The 95 % interval, by Student's quantile to two terms of its expansion in 1 / freedom."""
    quantile = Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)
    return mean - quantile * error, mean + quantile * error
