"""Whatever is minimised, what is reported is the bound: compared with the bound by enumeration."""

import pytest
import torch

from exact import TableWorld
from unmask.diffusion.bound import exact_bound
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.objective import OBJECTIVES
from unmask.diffusion.schedule import Cosine
from unmask.diffusion.times import Bell, Count, Stratified
from unmask.random import Noise, seed_of
from unmask.training import noise

DRAWS = 200_000
RULES = {
    "count": MDLM(times=Count()),
    "stratified": MDLM(times=Stratified()),
    "bell": MDLM(times=Bell()),
    "shifted bell": MDLM(times=Bell(mean=1.0, spread=0.7, floor=0.1)),
    "flat, bell": MDLM(times=Bell(), weight="flat"),
    "flat, count": MDLM(times=Count(), weight="flat"),
    "cosine": MDLM(times=Stratified(), schedule=Cosine()),
}


def wide(drawn: Noise) -> Noise:
    return Noise(drawn.t.double(), drawn.u.double(), drawn.key)


def estimate(world, x0, objective, seed=0):
    drawn = wide(noise.draw(DRAWS, len(x0), seed=seed, step=0))
    return objective.nats(world.network, CleanRows(x0.expand(DRAWS, -1), noise=drawn, mask=world.mask))


@pytest.mark.parametrize("rule", RULES)
def test_the_reported_bound_is_unbiased_whatever_the_times_and_the_weight(rule):
    world = TableWorld.random(1)
    x0 = torch.tensor([2, 0, 1])
    found = estimate(world, x0, RULES[rule]).bound.sum(1)
    told = exact_bound(world.network, x0, mask=world.mask)
    error = found.std() / DRAWS**0.5
    assert abs(found.mean() - told) < 4 * error
    assert error < 0.02 * told


def test_flat_weight_minimises_twice_the_cross_entropy_of_the_hidden_tokens():
    world, x0 = TableWorld.random(2), torch.tensor([0, 1, 2])
    flat = estimate(world, x0, RULES["flat, count"])
    hidden = flat.bound > 0
    k = hidden.sum(1, keepdim=True)
    torch.testing.assert_close(flat.loss, flat.bound * 2 * k / 3)


def test_the_bell_is_a_density_and_its_times_follow_it():
    even = (torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000
    when = Bell(mean=-0.5, spread=0.8, floor=0.3).at(even)
    # E[1/density] over the density is the length of [0, 1]; with t^2 in it, 1/3.
    assert (1 / when.density).mean() == pytest.approx(1, abs=1e-3)
    assert (when.t**2 / when.density).mean() == pytest.approx(1 / 3, abs=1e-3)
    assert (1 / when.density).max() <= 1 / 0.3 + 1e-6
    assert ((when.t > 0.25) & (when.t < 0.6)).double().mean() > 0.5


@pytest.mark.parametrize("name", ["mdlm", "d3pm", "sedd", "ar"])
def test_padding_costs_nothing_and_is_not_counted(name):
    table = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    objective = OBJECTIVES.usual(name)
    x0 = torch.randint(3, (64, 6), generator=torch.Generator().manual_seed(0))
    real = torch.arange(6) < torch.randint(2, 6, (64, 1), generator=torch.Generator().manual_seed(1))
    drawn = wide(noise.draw(64, 6, seed=0, step=0))
    found = objective.nats(lambda x_t, sigma, rows: table[rows % 6], CleanRows(x0, noise=drawn, mask=3, frozen=~real))
    assert (found.loss[~real] == 0).all()
    assert found.loss[real].sum() > 0
    assert objective.counted(real) == real.sum() - (64 if name == "ar" else 0)


def test_a_row_of_the_batch_gets_the_same_noise_whoever_works_on_it():
    drawn = noise.draw(12, 5, seed=3, step=7)
    whole = Bell().at(drawn.t)
    parts = [drawn.rows(slice(i, i + 4)) for i in (0, 4, 8)]
    torch.testing.assert_close(torch.cat([Bell().at(part.t).t for part in parts]), whole.t, rtol=0, atol=0)
    assert torch.equal(torch.cat([part.normal(3) for part in parts]), drawn.normal(3))
    again = noise.draw(12, 5, seed=3, step=7)
    assert torch.equal(drawn.t, again.t)
    assert torch.equal(drawn.u, again.u)
    assert torch.equal(drawn.key, again.key)


def test_normal_numbers_are_normal_and_uses_do_not_meet():
    drawn = noise.draw(64, 50, seed=1, step=0)
    one, other = drawn.normal(32).double(), drawn.normal(32, use=1).double()
    assert one.shape == (64, 50, 32)
    assert abs(one.mean()) < 0.01
    assert one.var() == pytest.approx(1, abs=0.02)
    assert (one**4).mean() == pytest.approx(3, abs=0.1)
    assert abs((one * other).mean()) < 0.01
    assert abs((one[:, :-1] * one[:, 1:]).mean()) < 0.01


def test_seeds_steps_and_uses_do_not_meet():
    numbers = range(30)
    seeds = {seed_of(a, b, c) for a in numbers for b in numbers for c in numbers}
    assert len(seeds) == 30**3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_times_below_low_are_never_looked_at():
    when = Stratified(low=1e-3).at(noise.draw(1000, 1, seed=0, step=0).t)
    assert when.t.min() >= 1e-3
    torch.testing.assert_close(when.density, torch.full((1000,), 1 / (1 - 1e-3)))
