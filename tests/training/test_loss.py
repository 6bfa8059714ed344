"""Whatever is minimised, what is reported is the bound: compared with the bound by enumeration."""

from dataclasses import replace

import pytest
import torch

from exact import TableWorld
from unmask.diffusion.bound import exact_bound
from unmask.training import noise
from unmask.training.loss import counted, nats
from unmask.training.settings import Objective

DRAWS = 200_000
RULES = {
    "count": Objective(times="count"),
    "stratified": Objective(times="stratified"),
    "bell": Objective(times="bell"),
    "shifted bell": Objective(times="bell", bell_mean=1.0, bell_spread=0.7, bell_floor=0.1),
    "flat, bell": Objective(times="bell", weight="flat"),
    "flat, count": Objective(times="count", weight="flat"),
    "cosine": Objective(times="stratified", schedule="cosine"),
}


def estimate(world, x0, objective, seed=0):
    rows = x0.expand(DRAWS, -1)
    even, u = noise.draw(DRAWS, len(x0), seed=seed, step=0)
    return nats(world.network, rows, noise.when(even.double(), objective), u.double(), objective, mask=world.mask)


@pytest.mark.parametrize("rule", RULES)
def test_the_reported_bound_is_unbiased_whatever_the_times_and_the_weight(rule):
    world = TableWorld.random(1)
    x0 = torch.tensor([2, 0, 1])
    found = estimate(world, x0, RULES[rule]).bound.sum(1)
    told = exact_bound(world.network, x0, mask=world.mask)
    error = found.std() / DRAWS**0.5
    # Schedules end at α_1 = 1e-3, which the enumerated bound does not know: that is worth about 1e-3 of it.
    assert abs(found.mean() - told) < 4 * error + 2e-3 * told
    assert error < 0.02 * told


def test_flat_weight_minimises_twice_the_cross_entropy_of_the_hidden_tokens():
    world, x0 = TableWorld.random(2), torch.tensor([0, 1, 2])
    flat = estimate(world, x0, RULES["flat, count"])
    hidden = flat.bound > 0
    k = hidden.sum(1, keepdim=True)
    torch.testing.assert_close(flat.loss, flat.bound * 2 * k / 3)


def test_the_bell_is_a_density_and_its_times_follow_it():
    objective = Objective(times="bell", bell_mean=-0.5, bell_spread=0.8, bell_floor=0.3)
    even = (torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000
    when = noise.bell(even, objective)
    # E[1/density] over the density is the length of [0, 1]; with t^2 in it, 1/3.
    assert (1 / when.density).mean() == pytest.approx(1, abs=1e-3)
    assert (when.t**2 / when.density).mean() == pytest.approx(1 / 3, abs=1e-3)
    assert (1 / when.density).max() <= 1 / 0.3 + 1e-6
    assert ((when.t > 0.25) & (when.t < 0.6)).double().mean() > 0.5


@pytest.mark.parametrize("name", ["mdlm", "d3pm", "sedd", "ar"])
def test_padding_costs_nothing_and_is_not_counted(name):
    table = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    objective = Objective(name=name, times="stratified" if name != "mdlm" else "count", steps=10)
    x0 = torch.randint(3, (64, 6), generator=torch.Generator().manual_seed(0))
    real = torch.arange(6) < torch.randint(2, 6, (64, 1), generator=torch.Generator().manual_seed(1))
    even, u = noise.draw(64, 6, seed=0, step=0)
    found = nats(
        lambda x_t, sigma, rows: table[rows % 6],
        x0,
        noise.when(even.double(), objective),
        u.double(),
        objective,
        mask=3,
        frozen=~real,
    )
    assert (found.loss[~real] == 0).all()
    assert found.loss[real].sum() > 0
    assert counted(real, objective) == real.sum() - (64 if name == "ar" else 0)


def test_a_row_of_the_batch_gets_the_same_noise_whoever_works_on_it():
    even, u = noise.draw(12, 5, seed=3, step=7)
    objective = Objective(times="bell")
    whole = noise.when(even, objective)
    parts = [noise.when(even[i : i + 4], objective).t for i in (0, 4, 8)]
    torch.testing.assert_close(torch.cat(parts), whole.t, rtol=0, atol=0)
    again, u_again = noise.draw(12, 5, seed=3, step=7)
    assert torch.equal(even, again)
    assert torch.equal(u, u_again)


def test_seeds_steps_and_uses_do_not_meet():
    numbers = range(30)
    seeds = {noise.mix(a, b, c) for a in numbers for b in numbers for c in numbers}
    assert len(seeds) == 30**3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_times_below_low_are_never_looked_at():
    even, _ = noise.draw(1000, 1, seed=0, step=0)
    when = noise.when(even, replace(Objective(), times="stratified", low=1e-3))
    assert when.t.min() >= 1e-3
    torch.testing.assert_close(when.density, torch.full((1000,), 1 / (1 - 1e-3)))
