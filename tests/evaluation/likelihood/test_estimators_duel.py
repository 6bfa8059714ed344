"""The likelihood of an order policy is that of the sampler it names, ties and noise levels included."""

import pytest
import torch

import exact
from exact import DOUBLE, TableWorld, TinyNetwork, every_text
from sampling.laws import draws
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.schedule import LinearSigma, LogLinear, shown_sigma
from unmask.evaluation.likelihood.estimators import ByOrder, Duel, estimator
from unmask.random import Noise
from unmask.sampling.policies.confidence import Leftmost, Ordered

ENOUGH = 1e-4
TEXTS = every_text(3, 3)
NONE = torch.zeros(len(TEXTS), 3, dtype=torch.bool)


def tied_world():
    """A row of masks has the same logits everywhere, up to less than a tie; so has a row with one letter."""
    world = TableWorld.random(3)
    alone = [3 + 4 * 3 + 16 * letter for letter in range(3)]  # the states (letter, mask, mask)
    for state in (63, *alone):
        world.table[state] = world.table[state, 0] + 1e-6 * torch.randn(
            3, 4, generator=torch.Generator().manual_seed(1)
        )
    return world


class Timed:
    """A network whose answers depend on the noise level."""

    letters = length = mask = 3

    def __init__(self):
        self.inner = TinyNetwork(seed=2).requires_grad_(False)

    def network(self, x_t, sigma, rows):
        return 3 * self.inner(x_t, 2 * sigma, rows)


def law_of_duel(world, policy, reveal, schedule):
    zero = torch.zeros(TEXTS.shape, dtype=DOUBLE)
    duel = Duel(policy, reveal, schedule)
    nats = duel.nats(world.network, CleanRows(TEXTS, noise=Noise(zero[:, 0], zero), mask=3, frozen=NONE))
    return {tuple(x.tolist()): float(p) for x, p in zip(TEXTS, (-nats.double().sum(1)).exp(), strict=True)}


def sampler(policy, reveal, schedule):
    calls = None if reveal == 1 else -(-3 // reveal)
    return Leftmost(calls, schedule) if policy == "left" else Ordered(policy, calls, schedule=schedule)


@pytest.mark.parametrize("schedule", [LogLinear(), LinearSigma(0.1, 3)], ids=str)
@pytest.mark.parametrize("reveal", [1, 2, 3])
@pytest.mark.parametrize("policy", ["confidence", "margin", "entropy", "left"])
@pytest.mark.parametrize("make", [tied_world, Timed])
def test_the_likelihood_is_that_of_the_sampler(make, policy, reveal, schedule):
    world = make()
    law = law_of_duel(world, policy, reveal, schedule)
    assert sum(law.values()) == pytest.approx(1, abs=1e-6)
    assert exact.chi_square_p(law, draws(world, sampler(policy, reveal, schedule), rows=20_000)) > ENOUGH


def test_an_order_is_shown_the_noise_level_of_the_continuous_process():
    """Its mean is that of `count`, which the network's own noise levels given k decide; their means would not do."""
    world, x0, rows = Timed(), torch.tensor([0, 2, 1]), 100_000
    generator = torch.Generator().manual_seed(0)
    u, t = torch.rand(rows, 3, generator=generator, dtype=DOUBLE), torch.rand(rows, generator=generator, dtype=DOUBLE)
    by_chain, by_number = (
        estimator(name, objective=MDLM(LogLinear(0.01)), budget=1 << 16)
        .nats(
            world.network, CleanRows(x0.expand(rows, -1), noise=Noise(t, u), mask=3, frozen=NONE[:1].expand(rows, -1))
        )
        .sum(1)
        for name in ("order", "count")
    )
    error = (by_chain.var() + by_number.var()).sqrt() / rows**0.5
    assert abs(by_chain.mean() - by_number.mean()) < 4 * error < 0.05


def test_an_order_reveals_each_token_at_its_own_time():
    shown = []

    def network(x_t, sigma, rows):
        shown.extend(zip(((x_t == 3).sum(1)).tolist(), sigma.tolist(), strict=True))
        return torch.zeros(len(rows), 4, dtype=DOUBLE)

    u = torch.tensor([[0.7, 0.1, 0.4]], dtype=DOUBLE)
    schedule = LogLinear(0.01)
    order = ByOrder(schedule, budget=99)
    order.nats(network, CleanRows(torch.tensor([[0, 2, 1]]), noise=Noise(u[:, 0], u), mask=3, frozen=NONE[:1]))
    expected = shown_sigma(schedule, torch.tensor([0.3, 0.9, 0.6], dtype=DOUBLE))  # 1, 3 and 2 tokens hidden
    assert dict(shown) == pytest.approx(dict(zip((1, 3, 2), expected.tolist(), strict=True)))
