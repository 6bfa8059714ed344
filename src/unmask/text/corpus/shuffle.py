"""shuffled: the i-th of n things in a random order, without writing the order down.

A keyed bijection gives one place of a permutation in constant time and memory, however large n is. It is a
Feistel network on pairs: i = left * b + right in a square of a * b >= n cells, where in turn one coordinate is
moved by a hash of the other. The few results that fall outside n are sent through again.
"""

from math import isqrt

import numpy as np

SMALL = 1 << 12  # below this the order is drawn and looked up: the coordinates would be too few to hash well
ROUNDS = 8


def shuffled(places: np.ndarray, n: int, *, seed: int, epoch: int) -> np.ndarray:
    """What stands at some places, each in [0, n), of the order that (seed, epoch) names."""
    random = np.random.default_rng((seed, epoch))
    if n <= SMALL:
        return random.permutation(n)[places]
    keys = random.integers(0, 2**64, ROUNDS, np.uint64)
    a = np.uint64(isqrt(n - 1) + 1)
    b = np.uint64(-(-n // int(a)))
    found = _network(places.astype(np.uint64), keys, a, b)
    while (outside := found >= n).any():
        found[outside] = _network(found[outside], keys, a, b)
    return found.astype(np.int64)


def _network(x: np.ndarray, keys: np.ndarray, a: np.uint64, b: np.uint64) -> np.ndarray:
    left, right = np.divmod(x, b)
    for first, second in keys.reshape(-1, 2):
        left = (left + _mixed(right ^ first) % a) % a
        right = (right + _mixed(left ^ second) % b) % b
    return left * b + right


def _mixed(x: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of x (the finalizer of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
