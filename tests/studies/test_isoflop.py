"""IsoFLOP fits find exponents that are known, and their intervals cover them as often as they say."""

import numpy as np
import pytest

from unmask.studies.isoflop import scaling, valleys

SIZES = (2e4, 5e4, 1e5, 2e5, 5e5)
A, B = 0.5, 0.07


def curves(noise=0.0, seed=0):
    """Parabolas in log N whose lowest points follow N ∝ C^A and loss ∝ C^−B exactly."""
    source = np.random.default_rng(seed)
    found = {}
    for budget in (3e12, 1e13, 3e13):
        best, low = 5e4 * (budget / 3e12) ** A, 3.0 * (budget / 3e12) ** -B
        sizes = [size * (budget / 3e12) ** A for size in SIZES]
        found[budget] = [
            (size, low + 0.05 * np.log(size / best) ** 2 + noise * source.standard_normal()) for size in sizes
        ]
    return found


def test_exact_curves_give_their_exponents():
    found = scaling("AR", curves(), draws=20)
    assert abs(found.size.value - A) < 1e-9
    assert abs(found.loss.value - B) < 1e-9
    assert all(one.inside for one in found.valleys)


def test_a_valley_outside_the_sizes_trained_is_not_used():
    points = {budget: [*some[2:], (1e6, 9.0)] for budget, some in curves().items()}
    outside = {1e12: [(1e3, 3.0), (2e3, 2.9), (4e3, 2.82), (8e3, 2.76)], **points}
    assert not valleys(outside)[0].inside
    hill = {1e12: [(1e3, 3.0), (2e3, 3.1), (4e3, 3.1), (8e3, 3.0)]}
    assert valleys(hill) == ()
    assert scaling("AR", hill).size is None


@pytest.mark.slow
def test_intervals_of_90_percent_cover_9_times_in_10():
    covered = [
        found.size.low <= A <= found.size.high
        for found in (scaling("AR", curves(0.01, seed), draws=100, seed=seed) for seed in range(50))
    ]
    assert 38 <= sum(covered) <= 49
