"""One stream: each order is a distribution given the first token, left to right is exact, `--init` loses nothing."""

from dataclasses import replace
from functools import partial
from itertools import permutations

import pytest
import torch

from diffusion.test_block_exact import small_network
from exact import every_text
from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.one_stream import OneStream, OneStreamLeftToRight
from unmask.model.backbone import build
from unmask.model.denoiser import Denoiser
from unmask.model.passes.whole import logits_at
from unmask.random import Noise

MASK = 3


def nats(objective, texts, *, u=None, t=0.5, frozen=None, before=False):
    u = torch.rand(texts.shape) if u is None else u.expand(texts.shape)
    noise = Noise(torch.full((len(texts),), t), u)
    with torch.no_grad():
        network = partial(logits_at, small_network(before=before))
        return objective.nats(network, CleanRows(texts, noise, mask=MASK, frozen=frozen)).bound


@pytest.mark.parametrize("before", [False, True])
def test_every_order_is_a_distribution_given_the_first_token(before):
    texts = every_text(3, 4)
    for order in permutations(range(4)):
        cost = nats(OneStream(left=0, ramp=0), texts, u=torch.tensor(order) / 4, before=before)
        assert not bool(cost[:, 0].any())
        assert float((-cost.sum(1).double()).exp().sum()) == pytest.approx(3, abs=1e-5)


def test_orders_differ_and_left_to_right_is_one_of_them():
    texts = every_text(3, 4)[::7]
    by_order = nats(OneStream(left=0, ramp=0), texts, u=torch.arange(4) / 4)
    torch.testing.assert_close(nats(OneStreamLeftToRight(), texts), by_order)
    assert float((by_order - nats(OneStream(left=0, ramp=0), texts, u=-torch.arange(4) / 4)).abs().max()) > 1e-3
    assert OneStreamLeftToRight().facts.exact
    assert set(OneStream().estimators()) == {"one-stream", "left-to-right"}


def test_given_tokens_are_read_first_and_cost_nothing():
    frozen = torch.tensor([[False, False, True, False]])
    cost = nats(OneStream(left=0, ramp=0), torch.tensor([[0, 1, 2, 0]]), frozen=frozen)
    assert cost[0, [0, 2]].tolist() == [0, 0]
    assert bool((cost[0, [1, 3]] > 0).all())


def test_weights_of_an_autoregressive_network_begin_with_its_loss_and_lead_from_there_to_all_orders():
    network, x0 = small_network(before=True), every_text(3, 4)[::5]
    told = Autoregressive().nats(partial(logits_at, causal(network)), CleanRows(x0, mask=MASK)).bound
    objective = OneStream(ramp=4.0)
    denoiser = Denoiser(network, objective)
    drawn = Noise(torch.linspace(0, 0.99, len(x0)), torch.rand(x0.shape))
    found = []
    for _ in range(5):
        found.append(denoiser(x0, drawn, mask=MASK)[0].loss.detach())
        denoiser.advance({})
    torch.testing.assert_close(found[0], told.detach())
    told = told.round(decimals=9)
    left = [int((one.round(decimals=9) == told).all(1).sum()) for one in found]
    assert left[0] == len(x0) > left[2] > left[4] >= 2, "a growing share of random orders, a tenth stays"


def causal(network):
    twin = build(replace(network.spec, causal=True)).double()
    twin.load_state_dict(network.state_dict())
    return twin.eval()
