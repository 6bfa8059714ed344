"""Costs computed before a network exists are those of the network."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.worlds import KINDS, random_network, random_tokens
from unmask.model import cost
from unmask.model.backbone import skeleton
from unmask.model.backbones.transformer import Architecture
from unmask.model.passes.whole import logits_at

OFFICIAL = Architecture(vocab=50258, length=1024, width=768, blocks=12, heads=12, cond=128)


@pytest.mark.parametrize("a", [*KINDS.values(), OFFICIAL], ids=[*KINDS, "official"])
def test_parameters_are_counted_without_building_the_network(a):
    assert cost.parameters(a) == sum(p.numel() for p in skeleton(a).parameters())


def test_the_published_networks_have_the_published_number_of_parameters():
    assert cost.parameters(OFFICIAL) == 169_627_218
    assert cost.parameters(replace(OFFICIAL, cond=0, causal=True)) == 162_246_482


@pytest.mark.parametrize("asked", [18, 6])
def test_operations_are_those_that_torch_counts(asked):
    a = replace(KINDS["plain"], width=32)
    net, tokens, rows = random_network(a), random_tokens(2, 9), torch.arange(asked) * (18 // asked)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        logits_at(net, tokens, torch.zeros(2, dtype=torch.float64), rows)
    assert counter.get_total_flops() == pytest.approx(18 * a.flops(rows=asked / 18), rel=1e-9)


def test_the_backward_pass_costs_two_forward_passes():
    a = replace(KINDS["plain"], width=32)
    net, tokens, rows = random_network(a), random_tokens(2, 9), torch.arange(18)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits_at(net, tokens, torch.zeros(2, dtype=torch.float64), rows).sum().backward()
    assert counter.get_total_flops() == pytest.approx(18 * cost.training_flops(a, rows=1.0), rel=1e-9)


def test_memory_grows_with_what_is_asked():
    small = cost.training_bytes(OFFICIAL, batch=1, ema=False)
    assert cost.training_bytes(OFFICIAL, batch=2, ema=False) > small > cost.inference_bytes(OFFICIAL)
    assert cost.training_bytes(OFFICIAL, batch=1) == small + 4 * cost.parameters(OFFICIAL)
    assert cost.inference_bytes(OFFICIAL, rows=0.1) < cost.inference_bytes(OFFICIAL)
