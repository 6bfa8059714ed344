"""Error bars: what another seed would change, and what another sample of text would change.

Rows get times that are spread evenly, so the part of the variance that comes from "few masks or many" is not there:
the curve of nats against time that all rows share is taken out before deviations are squared. What is left is
summed over rows, for the tokens of a row are not independent.
"""

from statistics import NormalDist

import numpy as np

CELLS = 64  # pieces of the curve at most
Z = NormalDist().inv_cdf(0.975)


def beside_the_curve(nats: np.ndarray, tokens: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, int]:
    """Nats (passes, rows) less what rows of as many tokens pay at such times on average, and the cells used."""
    cells = max(1, min(CELLS, nats.size // 16))
    cell = np.minimum((t * cells).astype(int), cells - 1)
    weight = np.broadcast_to(tokens, nats.shape)
    paid = np.bincount(cell.ravel(), nats.ravel(), cells)
    share = np.bincount(cell.ravel(), weight.ravel(), cells)
    curve = paid / np.maximum(share, 1)
    return nats - tokens * curve[cell], int((share > 0).sum())


def monte_carlo(nats: np.ndarray, tokens: np.ndarray, t: np.ndarray) -> tuple[float, float]:
    """The standard error of nats a token that comes from chance, and its degrees of freedom.

    It is the spread of a row between its passes. A single pass cannot tell that from the difference between rows,
    and then both are counted: too much rather than too little.
    """
    passes, rows = nats.shape
    rest, cells = beside_the_curve(nats, tokens, t)
    if passes > 1:
        rest = rest - rest.mean(0)
    freedom = max(rows * max(passes - 1, 1) - cells, 1)
    variance = np.square(rest).sum() / freedom * rows  # of the sum of one pass
    return float(np.sqrt(variance / passes) / tokens.sum()), float(freedom)


def of_weighted_orders(nats: np.ndarray, tokens: np.ndarray) -> float:
    """The standard error of −log mean exp(−nats) over the passes, by leaving out one pass at a time."""
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
    """The standard error if the rows were drawn from a larger text: chance and choice of text together.

    Rows of one cluster (a document) count as one draw.
    """
    rest, _ = beside_the_curve(nats, tokens, t)
    centred = rest.mean(0) - tokens * (rest.mean(0).sum() / tokens.sum())
    sums = np.bincount(np.unique(cluster, return_inverse=True)[1], centred)
    if len(sums) < 2:
        return float("inf")
    return float(np.sqrt(np.square(sums).sum() * len(sums) / (len(sums) - 1)) / tokens.sum())


def interval(mean: float, error: float, freedom: float) -> tuple[float, float]:
    """95 %: Student's quantile for few degrees of freedom, to two terms of its expansion."""
    quantile = Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)
    return mean - quantile * error, mean + quantile * error
