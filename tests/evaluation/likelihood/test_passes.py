"""Error bars that mean what they say: the printed error is the spread of repeated runs."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.worlds import number_of, passages_of, per_token, tally_of, texts_of
from exact import ChainWorld, TableWorld, every_text
from unmask.errors import UserError
from unmask.evaluation.likelihood import draws
from unmask.evaluation.likelihood.estimators import estimator
from unmask.evaluation.likelihood.passes import batches, evaluate, summary
from unmask.text.row import Row

WORLD = ChainWorld.random(letters=5, length=16)
TEXTS = texts_of(WORLD, 48)
ROWS = passages_of(TEXTS)
TRUTH = per_token(WORLD.nll(TEXTS), TEXTS)
REPEATS = 100


@cache
def runs_of(name, passes):
    """The same measurement with many seeds."""
    return [number_of(WORLD, ROWS, name, passes=passes, seed=s, budget=1 << 16) for s in range(REPEATS)]


@pytest.mark.slow
@pytest.mark.parametrize("name, passes", [("count", 2), ("time", 4)])
def test_the_printed_error_is_the_spread_of_runs_with_other_seeds(name, passes):
    runs = runs_of(name, passes)
    numbers = np.array([run.nats_per_token for run in runs])
    printed = np.sqrt(np.mean([run.standard_error**2 for run in runs]))
    assert 0.75 < printed / numbers.std(ddof=1) < 1.3
    assert abs(numbers.mean() - TRUTH) < 4 * numbers.std() / np.sqrt(REPEATS) + 2e-3 * TRUTH
    inside = np.mean([run.interval[0] <= TRUTH <= run.interval[1] for run in runs])
    assert 0.85 < inside <= 1.0


@pytest.mark.slow
def test_one_pass_says_too_much_rather_than_too_little():
    runs = runs_of("count", 1)
    spread = np.std([run.nats_per_token for run in runs])
    printed = np.sqrt(np.mean([run.standard_error**2 for run in runs]))
    assert 0.9 < printed / spread < 1.8


@pytest.mark.slow
def test_spreading_numbers_of_masks_over_rows_needs_fewer_rows_than_the_reference():
    spread = {name: np.std([run.nats_per_token for run in runs_of(name, 1)]) for name in ("count", "time")}
    assert (spread["time"] / spread["count"]) ** 2 > 2.5


@pytest.mark.slow
def test_the_error_of_the_data_is_the_spread_over_other_texts():
    runs = []
    for seed in range(REPEATS):
        rows = passages_of(texts_of(WORLD, 48, seed=1000 + seed))
        runs.append(number_of(WORLD, rows, passes=4, seed=seed, budget=1 << 16))
    spread = np.std([run.nats_per_token for run in runs])
    printed = np.sqrt(np.mean([run.data_standard_error**2 for run in runs]))
    assert 0.8 < printed / spread < 1.3


@pytest.mark.slow
def test_the_error_of_weighted_orders_is_their_spread():
    world, rows = TableWorld.random(), passages_of(every_text(3, 3))
    runs = [number_of(world, rows, "weighted", passes=6, seed=s, budget=1 << 14) for s in range(80)]
    spread = np.std([run.nats_per_token for run in runs])
    printed = np.sqrt(np.mean([run.standard_error**2 for run in runs]))
    assert 0.7 < printed / spread < 1.5


def test_rows_of_one_document_count_as_one_draw_of_text():
    alike = [
        replace(row, document=number // 4)
        for number, row in enumerate(passages_of(TEXTS[::4].repeat_interleave(4, 0)))
    ]
    tally = tally_of(WORLD, alike, "order", budget=1 << 14)
    apart, together = summary(tally), summary(tally, by_document=True)
    assert together.data_standard_error == pytest.approx(2 * apart.data_standard_error, rel=0.1)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), number=st.integers(0, 9), seed=st.integers(0, 2**32))
def test_times_are_spread_evenly_over_the_rows_of_every_pass(rows, number, seed):
    t = np.sort((draws.when(seed, rows, number) - draws.van_der_corput(number)) % 1)
    assert ((t * rows).astype(int) == np.arange(rows)).all()


def test_the_times_of_one_row_are_spread_over_its_passes():
    t = np.sort([draws.when(7, 3, number)[1] for number in range(8)])
    assert np.allclose(np.diff(t), 1 / 8)


def test_every_row_has_uniform_times_over_the_seeds():
    t = np.array([draws.when(seed, 5, 2)[3] for seed in range(2000)])
    assert abs(t.mean() - 0.5) < 0.02
    assert np.histogram(t, 10, (0, 1))[0].min() > 140


def test_draws_of_rows_and_passes_are_their_own():
    first = draws.uniforms(0, 1, 2, 8)
    assert (first == draws.uniforms(0, 1, 2, 8)).all()
    for other in (draws.uniforms(1, 1, 2, 8), draws.uniforms(0, 2, 2, 8), draws.uniforms(0, 1, 3, 8)):
        assert not np.isclose(first, other).any()


def test_numbers_do_not_depend_on_the_size_of_batches():
    numbers = [number_of(WORLD, ROWS, passes=2, budget=budget).nats_per_token for budget in (1, 100, 1 << 16)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-12)
    assert numbers[0] == pytest.approx(numbers[2], abs=1e-12)


def test_batches_hold_rows_of_one_length_and_every_row_once():
    rows = [Row.after(0, row.tokens[: 3 + number % 3]) for number, row in enumerate(ROWS)]
    work = batches(rows, budget=20, seed=3)
    assert sorted(number for batch in work for number in batch) == list(range(len(rows)))
    for batch in work:
        assert len({len(rows[number].tokens) for number in batch}) == 1
        assert sum(len(rows[number].tokens) for number in batch) <= 20
    assert work == batches(rows, budget=20, seed=3)
    assert work != batches(rows, budget=20, seed=4)


def test_a_first_pass_cut_short_is_marked_and_speaks_of_the_rows_it_saw():
    loop = evaluate(WORLD.network, ROWS, estimator("order", budget=64), mask=WORLD.mask, budget=64)
    next(loop)
    tally = next(loop)
    found = summary(tally)
    assert found.partial
    assert found.rows == 8
    seen = ~np.isnan(tally.nats[0])
    assert found.nats_per_token == pytest.approx(per_token(WORLD.nll(TEXTS)[seen], TEXTS[seen]))


def test_a_later_pass_cut_short_is_left_out():
    loop = evaluate(WORLD.network, ROWS, estimator("count"), mask=WORLD.mask, budget=256)
    tallies = [next(loop) for _ in range(4)]
    assert tallies[2].complete
    assert summary(tallies[3]).nats_per_token == summary(tallies[2]).nats_per_token
    assert not summary(tallies[3]).partial


def test_nothing_to_score_and_bad_numbers_are_refused():
    with pytest.raises(UserError, match="nothing to score"):
        next(evaluate(WORLD.network, [], estimator("count"), mask=WORLD.mask))
    with pytest.raises(UserError, match="at least one token"):
        batches(ROWS, budget=0)
    for seed in (-1, 1 << 64):
        with pytest.raises(UserError, match="seed must be 0 or more"):
            draws.uniforms(seed, 0, 0, 4)
        with pytest.raises(UserError, match="seed must be 0 or more"):
            batches(ROWS, budget=64, seed=seed)


def test_the_mask_in_the_text_is_refused():
    rows = passages_of(torch.tensor([[0, WORLD.mask, 1]]))
    with pytest.raises(UserError, match="holds the mask id"):
        number_of(WORLD, rows)
