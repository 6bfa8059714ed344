"""The bound: tight for an exact denoiser, one number in four forms, unbiased in every estimator."""

from functools import partial
from itertools import permutations
from math import log

import pytest
import torch

from exact import (
    DOUBLE,
    ChainWorld,
    TableWorld,
    TinyNetwork,
    bound_by_orders,
    every_text,
    expected,
    law_of_grid,
    law_of_random_order,
    loss_of_mask,
    nodes,
)
from unmask.diffusion.bound import every_mask, exact_bound, masked_losses
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.schedule import SCHEDULES, LinearSigma, LogLinear
from unmask.diffusion.times import Count, away_from_zero, stratified_times
from unmask.errors import UserError
from unmask.random import Noise

DEFAULTS = [SCHEDULES.make(name) for name in SCHEDULES]
OTHERS = [LogLinear(eps=0.0), LogLinear(eps=0.3), LinearSigma(low=0.5, high=2.0)]


def paid_by(objective):
    """The bound of one draw, as training and evaluation see it."""
    return lambda network, x0, t, u, mask: objective.nats(network, CleanRows(x0, noise=Noise(t, u), mask=mask)).bound


def bound_by_time(world, x0: torch.Tensor, schedule) -> float:
    """The mean of what `MDLM.nats` charges, by enumeration of masks and quadrature over t."""
    return expected(paid_by(MDLM(schedule)), world, x0, *nodes())


def bound_by_steps(world, x0: torch.Tensor, schedule, total: int) -> float:
    """The mean of what `MDLM.nats` charges over each of T steps."""
    t = (torch.arange(total, dtype=DOUBLE) + 0.5) / total
    return expected(paid_by(MDLM(schedule, steps=total)), world, x0, t, torch.full_like(t, 1 / total))


@pytest.mark.parametrize("schedule", [*DEFAULTS, *OTHERS], ids=repr)
def test_bound_is_tight_for_the_exact_denoiser_whatever_the_schedule(schedule):
    world = ChainWorld.random()
    for x0 in (torch.tensor([0, 2, 1, 1]), torch.tensor([2, 2, 0, 1])):
        assert bound_by_time(world, x0, schedule) == pytest.approx(float(world.nll(x0[None])), abs=1e-9)


@pytest.mark.parametrize("schedule", [*DEFAULTS, *OTHERS], ids=repr)
def test_t_steps_bound_the_likelihood_of_the_grid_whatever_the_schedule(schedule):
    world, T = ChainWorld.random(letters=2, length=3), 3
    shares = schedule.at(torch.linspace(1, 0, T + 1, dtype=DOUBLE)).hidden
    law = law_of_grid(world, ((shares - shares[-1]) / (shares[0] - shares[-1])).tolist())
    for x0 in every_text(2, 3):
        bound = float(exact_bound(world.network, x0, mask=2, schedule=schedule, steps=T))
        assert bound > -log(law[tuple(x0.tolist())])
    assert bound_by_steps(world, x0, schedule, T) == pytest.approx(bound, abs=1e-10)  # of the last text


@pytest.mark.parametrize("schedule", [*DEFAULTS, *OTHERS], ids=repr)
def test_t_steps_lie_above_the_entropy_and_fall_to_the_likelihood_whatever_the_schedule(schedule):
    world = ChainWorld.random(letters=2, length=2)
    texts = every_text(2, 2)
    nll = world.nll(texts)
    few, many = (
        torch.stack([exact_bound(world.network, x0, mask=2, schedule=schedule, steps=T) for x0 in texts])
        for T in (1000, 2000)
    )
    assert float((nll.neg().exp() * (many - nll)).sum()) > 0
    assert torch.allclose(2 * many - few, nll, rtol=0, atol=1e-5)  # twice the steps, half the gap


@pytest.mark.parametrize("world", [TableWorld.random(), ChainWorld.random()], ids=["table", "chain"])
def test_time_form_count_form_sum_over_masks_and_mean_over_orders_are_one_number(world):
    x0 = torch.tensor([0, 2, 1, 1])[: world.length]
    by_orders = bound_by_orders(world, x0)
    by_masks = float(exact_bound(world.network, x0, mask=world.mask))
    by_time = bound_by_time(world, x0, LogLinear())
    by_count = expected_by_count(world, x0)
    for other in (by_masks, by_time, by_count):
        assert other == pytest.approx(by_orders, abs=1e-10)


def nats_by_count(network, x0, *, t, u, mask, frozen=None):
    """The bound by the number of masks, as it is trained and reported."""
    return MDLM(times=Count()).nats(network, CleanRows(x0, noise=Noise(t, u), mask=mask, frozen=frozen)).bound


def nats_by_time(network, x0, *, t, u, mask):
    return MDLM(LogLinear(eps=0.0)).nats(network, CleanRows(x0, noise=Noise(t, u), mask=mask)).bound


def expected_by_count(world, x0: torch.Tensor) -> float:
    """The mean of `nats_by_count` over every k and every order of the uniforms: nothing is drawn."""
    l = len(x0)
    orders = torch.tensor(list(permutations(range(l))), dtype=DOUBLE)
    total = 0.0
    for k in range(1, l + 1):
        t = torch.full((len(orders),), (k - 0.5) / l, dtype=DOUBLE)
        nats = nats_by_count(world.network, x0.expand(len(orders), -1), t=t, u=orders / l, mask=world.mask)
        total += float(nats.sum(1).mean()) / l
    return total


def test_losses_of_masks_equal_those_computed_by_hand():
    world, x0 = TableWorld.random(), torch.tensor([1, 0, 2])
    for mask, loss in zip(every_mask(3), masked_losses(world.network, x0, mask=3), strict=True):
        by_hand = loss_of_mask(world, x0, tuple(mask.nonzero().squeeze(-1).tolist()))
        assert float(loss) == pytest.approx(by_hand, abs=1e-12)


def test_one_step_is_the_cross_entropy_of_all_masks():
    world, x0 = TableWorld.random(), torch.tensor([0, 2, 1])
    one = exact_bound(world.network, x0, mask=3, schedule=LogLinear(eps=0.0), steps=1)
    assert float(one) == pytest.approx(loss_of_mask(world, x0, (0, 1, 2)), abs=1e-12)


@pytest.mark.parametrize("total", [1, 2, 7])
def test_the_discrete_loss_is_unbiased_for_the_bound_of_its_steps(total):
    world, x0 = TableWorld.random(), torch.tensor([0, 2, 1])
    schedule, masks = LogLinear(eps=0.0), every_mask(3)
    expected = 0.0
    for i in range(1, total + 1):
        for mask in masks:
            share, k = i / total, int(mask.sum())
            nats = (
                MDLM(schedule, steps=total)
                .nats(
                    world.network,
                    CleanRows(
                        x0[None],
                        noise=Noise(
                            torch.tensor([(i - 0.5) / total], dtype=DOUBLE),
                            torch.where(mask, 0.0, 1.0 - 1e-16)[None].to(DOUBLE),
                        ),
                        mask=3,
                    ),
                )
                .bound
            )
            if (k == 3) or share < 1:
                expected += share**k * (1 - share) ** (3 - k) * float(nats.sum()) / total
    exact = exact_bound(world.network, x0, mask=3, schedule=schedule, steps=total)
    assert expected == pytest.approx(float(exact), abs=1e-10)


@pytest.mark.parametrize("world", [TableWorld.random(3), ChainWorld.random(1)], ids=["table", "chain"])
def test_the_gap_of_t_steps_to_continuous_time_falls_like_one_over_t(world):
    """T (L_T − L_∞) → (g(1) − g(0))/2, with g(t) = E[ce]/t: one end all masks, the other one mask at a time."""
    x0 = torch.tensor([0, 2, 1, 1])[: world.length]
    limit = float(exact_bound(world.network, x0, mask=world.mask))
    all_masks = loss_of_mask(world, x0, tuple(range(world.length)))
    one_mask = sum(loss_of_mask(world, x0, (i,)) for i in range(world.length))
    predicted = (all_masks - one_mask) / 2
    seen = [
        T * (float(exact_bound(world.network, x0, mask=world.mask, schedule=LogLinear(0.0), steps=T)) - limit)
        for T in (500, 1000)
    ]
    richardson = 2 * seen[1] - seen[0]
    assert richardson == pytest.approx(predicted, rel=1e-4, abs=1e-6)
    assert abs(seen[1] - predicted) < abs(seen[0] - predicted)


def test_the_bound_lies_above_the_likelihood_of_the_sampler_for_every_text():
    world = TableWorld.random()
    law = law_of_random_order(world)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    for x0 in every_text(3, 3):
        nll = -torch.tensor(law[tuple(x0.tolist())]).log().item()
        assert float(exact_bound(world.network, x0, mask=3)) >= nll - 1e-6


def moments(world, x0: torch.Tensor, t: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """First and second moment, over every mask, of what one row pays at each of the times t."""
    if form == "t":
        u = torch.where(every_mask(len(x0)), 0.0, 1.0).to(DOUBLE)
        k = every_mask(len(x0)).sum(1)
        chance = t[:, None] ** k * (1 - t[:, None]) ** (len(x0) - k)  # (times, masks)
        paid = partial(nats_by_time, world.network)
    else:
        u = torch.tensor(list(permutations(range(len(x0)))), dtype=DOUBLE) / len(x0)
        chance = torch.full((len(t), len(u)), 1 / len(u), dtype=DOUBLE)
        paid = partial(nats_by_count, world.network)
    x = x0.expand(len(t) * len(u), -1)
    nats = paid(x, t=t.repeat_interleave(len(u)), u=u.repeat(len(t), 1), mask=world.mask).sum(1).view(chance.shape)
    return (chance * nats).sum(1), (chance * nats**2).sum(1)


def mean_and_deviation(world, x0: torch.Tensor, form: str, spread: bool, *, rows: int) -> tuple[float, float]:
    """Expectation and standard deviation of an estimate from some rows, by quadrature over their uniforms."""
    v, weight = nodes()
    mean, variance = 0.0, 0.0
    for i in range(rows):
        # Row i of a stratified batch lives in cell i; its time for each uniform v comes from the code under test.
        t = stratified_row(v, i, rows) if spread else v
        first, second = moments(world, x0, away_from_zero(t) if form == "t" else t, form)
        mean += float((weight * first).sum()) / rows
        variance += float((weight * second).sum() - (weight * first).sum() ** 2) / rows**2
    return mean, variance**0.5


def stratified_row(v: torch.Tensor, i: int, rows: int) -> torch.Tensor:
    """The time of row i for each value v of its uniform."""
    return torch.stack([stratified_times(torch.full((rows,), float(value), dtype=DOUBLE))[i] for value in v])


@pytest.mark.parametrize("world", [TableWorld.random(), ChainWorld.random()], ids=["table", "chain"])
def test_every_estimator_is_unbiased_and_stratified_counts_vary_least(world):
    x0 = torch.tensor([0, 2, 1, 1])[: world.length]
    exact = float(exact_bound(world.network, x0, mask=world.mask))
    # Times keep away from 0, where the weight is infinite: what [0, 1e-3] holds is the only bias of the t form.
    t, weight = nodes()
    kept = float((weight * moments(world, x0, away_from_zero(t), "t")[0]).sum())
    assert kept == pytest.approx(exact, rel=2e-3)
    deviation = {}
    for name, form, spread in (
        ("iid t", "t", False),
        ("stratified t", "t", True),
        ("iid k", "k", False),
        ("stratified k", "k", True),
    ):
        mean, deviation[name] = mean_and_deviation(world, x0, form, spread, rows=world.length)
        assert mean == pytest.approx(kept if form == "t" else exact, abs=1e-10), name
    print(f"bound {exact:.4f}, standard deviation of {world.length} rows:", deviation)
    assert deviation["stratified k"] < deviation["iid k"] < deviation["stratified t"] < deviation["iid t"]


def test_the_gradient_of_the_exact_bound_is_the_mean_gradient_of_its_estimator():
    network, x0 = TinyNetwork(), torch.tensor([0, 2, 1])
    parameters = list(network.parameters())

    class Still:  # the network without its noise input: the count form shows none
        mask, letters, length = 3, 3, 3

        @staticmethod
        def network(x_t, sigma, rows):
            return network(x_t, torch.zeros_like(sigma), rows)

    exact = torch.autograd.grad(exact_bound(Still.network, x0, mask=3), parameters, allow_unused=True)
    orders = torch.tensor(list(permutations(range(3))), dtype=DOUBLE) / 3
    t = torch.tensor([1 / 6, 3 / 6, 5 / 6], dtype=DOUBLE).repeat_interleave(len(orders))
    nats = nats_by_count(Still.network, x0.expand(18, -1), t=t, u=orders.repeat(3, 1), mask=3)
    mean = torch.autograd.grad(nats.sum(1).mean(), parameters, allow_unused=True)
    for a, b in zip(exact, mean, strict=True):
        assert (a is None and b is None) or torch.allclose(a, b, atol=1e-12)


def test_frozen_tokens_make_the_bound_conditional():
    """With the last token given, the count form bounds −log p(rest | last); the exact denoiser makes it equal."""
    world, x0 = ChainWorld.random(length=3), torch.tensor([0, 2, 1])
    orders = torch.tensor(list(permutations(range(3))), dtype=DOUBLE) / 3
    frozen = torch.tensor([[False, False, True]]).expand(len(orders), -1)
    total = 0.0
    for k in (1, 2):
        t = torch.full((len(orders),), (k - 0.5) / 2, dtype=DOUBLE)
        nats = nats_by_count(world.network, x0.expand(len(orders), -1), t=t, u=orders, mask=3, frozen=frozen)
        total += float(nats.sum(1).mean()) / 2
    joint = world.nll(every_text(3, 3))
    marginal = torch.logsumexp(-joint[every_text(3, 3)[:, 2] == 1], 0)
    assert total == pytest.approx(float(world.nll(x0[None]) + marginal), abs=1e-10)


def test_nonsense_is_refused():
    world = TableWorld.random()
    with pytest.raises(UserError, match="1 to 12 tokens; saw 13"):
        exact_bound(world.network, torch.zeros(13, dtype=torch.long), mask=3)
    with pytest.raises(UserError, match="depends on the schedule"):
        exact_bound(world.network, torch.tensor([0, 1, 2]), mask=3, steps=4)


def test_a_row_without_free_tokens_has_no_nats():
    nats = nats_by_count(
        TableWorld.random().network,
        torch.tensor([[0, 1, 2]]),
        t=torch.tensor([0.5], dtype=DOUBLE),
        u=torch.zeros(1, 3, dtype=DOUBLE),
        mask=3,
        frozen=torch.ones(1, 3, dtype=torch.bool),
    )
    assert torch.equal(nats, torch.zeros_like(nats))
