"""Times are pure functions of uniforms, spread as they claim to be."""

import pytest
import torch

from unmask.diffusion.times import TIMES, away_from_zero, counts, grid, steps, stratified_times
from unmask.errors import UserError


def test_stratified_times_equal_the_reference(golden):
    u = golden["tsample_u"]
    assert torch.allclose(away_from_zero(stratified_times(u)), golden["tsample_t_antithetic"], atol=1e-6)
    assert torch.allclose(away_from_zero(u), golden["tsample_t_plain"], atol=1e-6)


def test_each_cell_holds_one_stratified_time(generator):
    t = stratified_times(torch.rand(64, generator=generator, dtype=torch.float64))
    assert ((t * 64).long() == torch.arange(64)).all()


def test_every_step_is_drawn_equally_often_the_first_included():
    u = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    seen = steps(u, total=10)
    assert (torch.bincount(seen)[1:] == 100).all()
    assert seen.min() == 1
    assert steps(torch.tensor([0.0, 1.0]), total=10).tolist() == [1, 10]


def test_stratified_counts_cover_every_number_of_masks_once(generator):
    k = counts(stratified_times(torch.rand(12, generator=generator, dtype=torch.float64)), torch.full((12,), 12))
    assert k.tolist() == list(range(1, 13))


def test_counts_never_exceed_the_free_positions_of_their_row():
    u, free = torch.tensor([0.0, 0.5, 0.999999, 1.0]), torch.tensor([3, 1, 7, 5])
    assert counts(u, free).tolist() == [1, 1, 7, 5]


def test_grids_run_from_one_to_where_they_end():
    assert grid(4).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert grid(1000, last=1e-5)[-1] == 1e-5


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: grid(0), "at least 1; saw 0"),
        (lambda: grid(5, last=1.0), "saw 1.0"),
        (lambda: steps(torch.tensor([0.5]), total=0), "at least 1; saw 0"),
        (lambda: stratified_times(torch.empty(0)), "empty batch"),
        (lambda: stratified_times(torch.tensor([1.5])), "saw 1.5"),
        (lambda: away_from_zero(torch.tensor([0.5]), eps=1.0), "saw 1.0"),
        (lambda: counts(torch.tensor([0.5]), torch.tensor([0])), "at least one position"),
    ],
)
def test_nonsense_is_refused_with_what_was_seen(call, says):
    with pytest.raises(UserError, match=says):
        call()


@pytest.mark.parametrize("name", sorted(TIMES))
def test_the_weight_of_a_draw_is_one_over_its_density(name):
    """The mean weight of the draws in any tenth of time is a tenth: no part is counted twice or left out."""
    even = (torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000
    when = TIMES.make(name).at(even)
    weight = torch.bincount((when.t * 10).long().clamp(max=9), 1 / when.density, 10) / len(even)
    assert torch.allclose(weight, torch.full((10,), 0.1, dtype=torch.float64), atol=2e-4)
