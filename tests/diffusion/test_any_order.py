"""Any-order diffusion: its bound is the mean over orders, each order is a distribution, left to right is exact."""

from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
import torch

from diffusion.test_block_exact import small_network
from exact import every_text
from unmask.diffusion.any_order import AnyOrder, LeftToRightLikelihood, reading_ranks
from unmask.diffusion.clean import CleanRows
from unmask.errors import UserError
from unmask.evaluation.likelihood.error_bars import tangent_bound
from unmask.model.passes.whole import logits_at
from unmask.random import Noise

MASK = 3


def nats(objective, texts, *, u=None, t=0.5, frozen=None, state=None):
    u = torch.rand(texts.shape) if u is None else u.expand(texts.shape)
    noise = Noise(torch.full((len(texts),), t), u)
    with torch.no_grad():
        network = partial(logits_at, small_network(before=False))
        return objective.nats(network, CleanRows(texts, noise, mask=MASK, frozen=frozen, state=state or {})).bound


def test_every_order_is_a_distribution():
    texts = every_text(3, 4)
    for order in permutations(range(4)):
        total = (-nats(AnyOrder(left=0, ramp=0), texts, u=torch.tensor(order) / 4).sum(1).double()).exp().sum()
        assert float(total) == pytest.approx(1, abs=1e-5)


def test_the_bound_is_the_mean_over_orders():
    texts = every_text(3, 3)[5:9]
    orders = [torch.tensor(order) / 3 for order in permutations(range(3))]
    mean = torch.stack([nats(AnyOrder(left=0, ramp=0), texts, u=order).sum(1) for order in orders]).mean(0)
    generator = torch.Generator().manual_seed(0)
    many = texts[0].expand(6000, -1)
    drawn = nats(AnyOrder(left=0, ramp=0), many, u=torch.rand(many.shape, generator=generator)).sum(1)
    assert float(abs(drawn.mean() - mean[0])) < 4 * float(drawn.std()) / 6000**0.5


def test_the_bounds_of_random_orders_hold_log_p_between_them_for_every_text():
    texts = every_text(3, 3)
    orders = [torch.tensor(order) / 3 for order in permutations(range(3))]
    each = torch.stack([nats(AnyOrder(left=0, ramp=0), texts, u=order).sum(1).double() for order in orders]).numpy()
    truth = -np.log(np.exp(-each).mean(0))
    below = np.mean([tangent_bound(each[list(drawn)]) for drawn in product(range(6), repeat=3)], 0)
    assert bool((below <= truth + 1e-6).all())
    assert bool((truth <= each.mean(0) + 1e-6).all())
    assert truth.sum() - below.sum() > 1e-3


def test_left_to_right_is_the_order_of_the_text_whatever_the_noise():
    texts = every_text(3, 4)[::7]
    by_order = nats(AnyOrder(left=0, ramp=0), texts, u=torch.arange(4) / 4)
    torch.testing.assert_close(nats(LeftToRightLikelihood(), texts), by_order)
    assert LeftToRightLikelihood().facts.exact
    assert set(AnyOrder().estimators()) == {"any-order", "left-to-right"}


def test_given_tokens_are_read_first_from_left_to_right_and_cost_nothing():
    frozen = torch.tensor([[True, False, True, False]])
    rank = reading_ranks(torch.tensor([[0.1, 0.9, 0.2, 0.3]]), torch.tensor([False]), frozen)
    assert rank.tolist() == [[0, 3, 1, 2]]
    cost = nats(AnyOrder(left=0, ramp=0), torch.tensor([[0, 1, 2, 0]]), frozen=frozen)
    assert cost[frozen].tolist() == [0, 0]
    assert bool((cost[~frozen] > 0).all())


def test_given_tokens_leave_a_distribution_over_the_rest():
    texts, frozen = every_text(3, 4), torch.tensor([True, False, True, False])
    texts = texts[(texts[:, 0] == 1) & (texts[:, 2] == 2)]
    cost = nats(AnyOrder(left=0, ramp=0), texts, u=torch.tensor([0.1, 0.9, 0.2, 0.3]), frozen=frozen.expand(9, 4))
    assert float((-cost.sum(1)).exp().sum()) == pytest.approx(1, abs=1e-5)


def test_the_share_of_left_to_right_rows_falls_from_one():
    objective = AnyOrder(left=0.2, ramp=0.5).for_steps(20)
    assert objective.ramp == 10
    state, shares = objective.state(), []
    for _ in range(13):
        shares.append(objective.share(state))
        state = objective.advance(state, {})
    assert shares[0] == 1
    assert shares[5] == pytest.approx(0.6)
    assert shares[10:] == pytest.approx([0.2, 0.2, 0.2])
    u = torch.rand(4, 6)
    assert reading_ranks(u, torch.arange(4) / 4 < 0.5, None)[:2].tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert AnyOrder().bounded().share(state) == 0, "evaluation draws all orders"


@pytest.mark.parametrize(("wrong", "word"), [({"left": 1.5}, "left"), ({"ramp": -1.0}, "ramp")])
def test_wrong_settings_are_refused(wrong, word):
    with pytest.raises(UserError, match=word):
        AnyOrder(**wrong)
