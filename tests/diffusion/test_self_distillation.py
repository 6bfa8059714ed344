"""Self-distillation: its targets, that an exact network has nothing to learn, and what no single call can do."""

from itertools import product
from math import sqrt

import pytest
import torch

from contracts.members import LETTERS, network_of, spec_of
from exact import ChainWorld, TableWorld
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.self_distillation import SelfDistillation, inverse_cdf_of
from unmask.diffusion.times import Count
from unmask.errors import UserError
from unmask.model.denoiser import Denoiser
from unmask.random import Noise, keys
from unmask.training import noise

ALL = SelfDistillation(calls=1, teacher=3, data=0.0)  # of three tokens, one in each call of the teacher


def noise_of(rows, length=3, seed=0, order=None):
    u = torch.rand(rows, length) if order is None else torch.tensor(order).expand(rows, -1)
    return Noise(torch.full((rows,), 0.999), u, keys(seed, torch.arange(rows)))


def targets(world, objective, clean, x_t):
    rows = (x_t == world.mask).flatten().nonzero().squeeze(1)
    log_p = world.network(x_t, torch.zeros(len(x_t)), rows)
    log_p = log_p.index_fill(-1, torch.tensor([world.mask]), -torch.inf).log_softmax(-1)
    return objective.targets(world.network, clean, x_t, rows, log_p), log_p, rows


def test_the_target_is_the_distribution_of_the_call_that_reveals_or_of_the_last():
    world = TableWorld.random(1)
    clean = CleanRows(torch.zeros(4, 3, dtype=torch.long), noise_of(4, order=[0.3, 0.9, 0.6]), mask=3)
    x_t = torch.full((4, 3), 3)
    for objective, calls in ((ALL, 3), (SelfDistillation(calls=1, teacher=2, data=0.0), 2)):
        found, first, _ = targets(world, objective, clean, x_t)
        found, first = found.view(4, 3, -1), first.view(4, 3, -1)
        x, each = x_t.clone(), 3 // calls + 3 % calls
        for number, some in enumerate(torch.tensor([1, 2, 0]).split(each)):
            logits = world.network(x, torch.zeros(4), torch.arange(12)).view(4, 3, -1)[..., :3]
            told = logits.log_softmax(-1)
            torch.testing.assert_close(found[:, some, :3], told[:, some])
            u = clean.noise.uniform(3, use=number)[:, some]
            for place, number_ in zip(some.tolist(), u.unbind(1), strict=True):
                x[:, place] = inverse_cdf_of(told[:, place], number_)
        torch.testing.assert_close(found[:, 1], first[:, 1])


def test_an_exact_network_is_told_by_its_later_calls_what_it_says_at_once():
    """The mean of the targets over what is drawn is its own distribution: the loss has its minimum there."""
    world, many = ChainWorld.random(3, length=3), 20_000
    clean = CleanRows(torch.zeros(many, 3, dtype=torch.long), noise_of(many, order=[0.3, 0.9, 0.6]), mask=3)
    found, first, _ = targets(world, ALL, clean, torch.full((many, 3), 3))
    mean = found.exp().view(many, 3, -1).mean(0)
    assert float((mean - first.exp().view(many, 3, -1)[0]).abs().max()) < 0.015
    inconsistent = TableWorld.random(1)
    found, first, _ = targets(inconsistent, ALL, clean, torch.full((many, 3), 3))
    assert float((found.exp().view(many, 3, -1).mean(0) - first.exp().view(many, 3, -1)[0]).abs().max()) > 0.1


def test_no_single_call_can_draw_two_equal_letters_by_enumeration():
    """Two letters that are equal, each with probability 1/2: the error floor of everything that is drawn at once."""
    truth = {(0, 0): 0.5, (1, 1): 0.5, (0, 1): 0.0, (1, 0): 0.0}

    def apart(a, b):
        law = {pair: (a, 1 - a)[pair[0]] * (b, 1 - b)[pair[1]] for pair in truth}
        return sum(abs(law[pair] - p) for pair, p in truth.items()) / 2

    grid = [i / 200 for i in range(201)]
    assert min(apart(a, b) for a, b in product(grid, grid)) == pytest.approx(sqrt(2) - 1, abs=1e-3)
    assert apart(0.5, 0.5) == 0.5, "the marginals, which the network learns, are further away still"


def test_the_bound_is_that_of_mdlm_and_a_share_of_the_loss_is_that_of_the_data():
    network = network_of(spec_of("transformer"), scale=0.2)
    rows = torch.randint(LETTERS.size - 3, (5, 12), generator=torch.Generator().manual_seed(3))
    seen, told = {}, None
    for data in (0.0, 0.5, 1.0):
        denoiser = Denoiser(network, SelfDistillation(calls=3, data=data))
        drawn_noise = noise.draw(5, 12, seed=1, step=0)
        seen[data], _ = denoiser(rows, drawn_noise, mask=LETTERS.mask)
        told, _ = Denoiser(network, MDLM(times=Count(), weight="flat"))(rows, drawn_noise, mask=LETTERS.mask)
        torch.testing.assert_close(seen[data].bound, told.bound)
        assert float(seen[data].loss.detach().min()) > -1e-6, "a distance"
    torch.testing.assert_close(seen[1.0].loss, told.loss)
    torch.testing.assert_close(seen[0.5].loss, (seen[0.0].loss + seen[1.0].loss) / 2)
    seen[0.0].loss.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("wrong", [{"calls": 0}, {"teacher": 1}, {"data": 2.0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        SelfDistillation(**wrong)
