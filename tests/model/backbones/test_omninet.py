"""OmniNet sees all layers of what it may see and nothing of what comes later; small cases by hand."""

from dataclasses import replace

import pytest
import torch

from unmask.errors import UserError
from unmask.model.attending import attend_in
from unmask.model.backbones.block import BlockInputs
from unmask.model.backbones.omninet import OmniNet, OmniNetSpec
from unmask.model.cost import parameters
from unmask.model.passes.whole import hidden_states, read_on
from unmask.model.passing import Causal, Empty, Full, Pass

SPEC = OmniNetSpec(vocab=11, width=16, blocks=4, heads=2, partition=3, causal=True)


def network(**changes) -> OmniNet:
    torch.manual_seed(0)
    made = OmniNet(replace(SPEC, **changes)).double().eval()
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return made


def states(net, x):
    """The states of all positions of one row of vectors."""
    return net.run(Pass(x, net.spec.own_rule)).hidden


def reading(x, turns, sees):
    return BlockInputs(attend_in(Pass(x, sees)), turns)


def test_no_state_depends_on_a_later_position_and_every_one_on_all_before():
    """The Jacobian of what position i gives with respect to what position j is given: zero for j > i."""
    net = network()
    x = net.embed(torch.randint(11, (1, 7), generator=torch.Generator().manual_seed(1)))
    jacobian = torch.autograd.functional.jacobian(lambda one: states(net, one)[0], x)[:, :, 0].abs().sum((1, 3))
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    assert (jacobian[later] == 0).all()
    assert (jacobian[~later] > 0).all()


@pytest.mark.slow
def test_a_group_of_one_layer_adds_a_block_of_its_own_output():
    net = network(blocks=1, partition=2)
    x = net.embed(torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(1)))
    sight = reading(x, net.rotary.turns(5), Causal())
    first = net.blocks[0](x, sight, 0, False)
    second = first + net.omnis[0](first, sight, 0, False)
    told = torch.nn.functional.layer_norm(second, (16,), net.norm.weight)
    assert torch.allclose(states(net, x), told)


@pytest.mark.slow
def test_the_omni_block_is_attention_over_every_layer_of_what_is_visible():
    """By hand: position by position, the keys of all layers up to it, and the maximum over the layers."""
    net = network(blocks=2, partition=3)
    x = net.embed(torch.randint(11, (1, 5), generator=torch.Generator().manual_seed(1)))
    turns = net.rotary.turns(5)
    sight = reading(x, turns, Causal())
    one = net.blocks[0](x, sight, 0, False)
    two = net.blocks[1](one, sight, 1, False)
    both = torch.stack((one, two), 2)  # (b l layers d): another order of the same keys
    told = []
    for i in range(5):
        keys = both[:, : i + 1].flatten(1, 2)
        place = turns[: i + 1].repeat_interleave(2, 0)
        out = net.omnis[0](keys, reading(keys, place, Full()), 0, False)
        told.append(two[:, i] + out[:, -2:].amax(1))
    told = torch.nn.functional.layer_norm(torch.stack(told, 1), (16,), net.norm.weight)
    assert torch.allclose(states(net, x), told)


@pytest.mark.slow
@pytest.mark.parametrize("partition", [2, 3, 5])
def test_reading_on_and_recomputation_change_nothing(partition):
    net = network(partition=partition)
    x = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))
    memory, parts = Empty(9), []
    with torch.no_grad():
        for piece in x.split([4, 1, 4], 1):
            hidden, memory = read_on(net, piece, memory)
            parts.append(hidden)
        assert torch.allclose(torch.cat(parts, 1), states(net, net.embed(x)))
    net.train()
    gradients = []
    for net.recompute in (False, True):
        net.zero_grad()
        net.head(hidden_states(net, x)).logsumexp(-1).sum().backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))
    assert parameters(net.spec) == sum(p.numel() for p in net.parameters())


def test_a_shape_that_cannot_be_is_refused():
    with pytest.raises(UserError, match="from 2 to 5"):
        replace(SPEC, partition=6)
    with pytest.raises(UserError, match="cannot be split into 3 heads"):
        replace(SPEC, heads=3)
