"""Error bars by simulation: what is printed is the spread of evaluations with other seeds, also with few rows."""

import numpy as np
import pytest

from unmask.evaluation.likelihood import draws
from unmask.evaluation.likelihood.error_bars import fitted_curve, monte_carlo, of_the_data

LENGTH = 32


def texts(rows: int, *, alike: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The level of each row and its own slope: some texts are harder than others, some more with many masks."""
    source = np.random.default_rng(seed)
    return (0.0 if alike else 0.4) * source.normal(size=rows), 0.5 * source.normal(size=rows)


def evaluated(rows: int, passes: int, seed: int, level: np.ndarray, slope: np.ndarray):
    """Nats (passes, rows), tokens and times, as a small model of stories gives them: steepest near all masks."""
    t = np.stack([draws.when(seed, rows, number) for number in range(passes)])
    k = np.floor(t * LENGTH) + 1
    u = k / LENGTH
    noise = 2 * np.sqrt((1 - u) / k + 0.02 * u) * np.random.default_rng(seed).normal(size=t.shape)
    nats = 1.4 + 0.9 * u + 3.5 * u**6 + level + slope * (u - 0.5) + noise
    return LENGTH * nats, np.full(rows, float(LENGTH)), t


def printed_over_true(rows: int, passes: int, *, alike: bool = False, repeats: int = 100) -> float:
    """Root mean square of the printed error, divided by the spread over seeds of the same texts."""
    variance, printed = [], []
    for number in range(5):
        text = texts(rows, alike=alike, seed=number)
        runs = [evaluated(rows, passes, seed, *text) for seed in range(repeats * number, repeats * (number + 1))]
        variance.append(np.var([nats.mean() / LENGTH for nats, _, _ in runs], ddof=1))
        printed += [monte_carlo(*run)[0] ** 2 for run in runs]
    return float(np.sqrt(np.mean(printed) / np.mean(variance)))


@pytest.mark.parametrize("rows, passes", [(8, 2), (8, 4), (16, 2), (16, 4), (64, 4)])
def test_the_printed_error_is_within_a_quarter_of_the_true_spread(rows, passes):
    assert 0.9 < printed_over_true(rows, passes) < 1.25


@pytest.mark.slow
def test_the_printed_error_stays_right_with_many_rows():
    assert 0.9 < printed_over_true(1000, 2) < 1.35


@pytest.mark.parametrize("rows", [8, 16])
def test_one_pass_adds_the_variance_between_rows_and_nothing_else(rows):
    assert 0.9 < printed_over_true(rows, 1, alike=True) < 1.25
    assert printed_over_true(rows, 1) > printed_over_true(rows, 1, alike=True)


def test_the_error_of_the_data_is_the_spread_over_other_texts_also_with_few_rows():
    for passes in (1, 2):
        runs = [evaluated(8, passes, seed, *texts(8, seed=seed)) for seed in range(500)]
        printed = np.mean([of_the_data(*run, np.arange(8)) ** 2 for run in runs])
        true = np.var([nats.mean() / LENGTH for nats, _, _ in runs])
        assert 0.9 < np.sqrt(printed / true) < 1.25


def test_a_curve_shared_by_all_rows_is_no_error():
    t = np.stack([draws.when(0, 8, number) for number in range(4)])
    tokens = np.arange(3.0, 11.0)
    level = np.linspace(1, 5, 8)
    nats = tokens * (level + 2 * t + 3 * t**2 - t**3)
    found = fitted_curve(nats, tokens, t)
    assert np.abs(found.deviations).max() < 1e-9
    assert np.allclose(found.slope(t), 2 + 6 * t - 3 * t**2)
    assert found.freedom == 8 * 3 - 5


def test_one_row_in_one_pass_has_no_known_error_and_equal_times_do_no_harm():
    assert monte_carlo(np.ones((1, 1)), np.ones(1), np.full((1, 1), 0.3))[0] == np.inf
    nats = np.random.default_rng(0).normal(size=(1, 40))
    assert of_the_data(nats, np.ones(40), np.zeros((1, 40)), np.arange(40)) == pytest.approx(
        nats.std(ddof=1) / 40**0.5
    )
