"""Adapters: low-rank updates on every backbone, kept apart or multiplied in."""

import pytest
import torch
from torch import nn

from contracts.members import network_of, spec_of
from unmask.errors import UserError
from unmask.model.adapter import Adapter, LowRankUpdates, adapt, add_updates
from unmask.model.backbone import BACKBONES, skeleton
from unmask.model.passes.segments import segment
from unmask.model.passes.whole import logits_at

SMALL = Adapter(rank=2, alpha=8)


def adapted(network, adapter=SMALL):
    """The updates of a network, with values that are not 0."""
    torch.manual_seed(3)
    updates = LowRankUpdates(network, adapter)
    for parameter in updates.parameters():
        nn.init.normal_(parameter, std=0.3)
    adapt(network, updates)
    return updates


def logits(network, *, seed=0):
    spec = network.spec
    torch.manual_seed(seed)
    x = torch.randint(spec.vocab, (2, spec.length))
    sigma = torch.rand(2) if spec.shown_sigma else None
    if spec.carries:
        return network.head(network.run(segment(x, torch.arange(x.numel()), None)).hidden)
    return logits_at(network, x, sigma, torch.arange(x.numel()))


def small(name, *, sigma=False):
    return spec_of(name, causal=name in ("hyena", "mamba", "transformer-xl", "toy-recurrent"), sigma=sigma)


CASES = [(name, False) for name in BACKBONES if name != "toy-recurrent"] + [("transformer", True)]


@pytest.mark.parametrize(("name", "sigma"), CASES)
def test_updates_kept_apart_equal_merged_weights(name, sigma):
    spec = small(name, sigma=sigma)
    network, plain = network_of(spec).double(), skeleton(spec)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    unchanged = logits(network.eval())
    updates = adapted(network).double()
    apart = logits(network)
    assert network.state_dict().keys() == before.keys(), "the base keeps its names and weights"
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    whole = {key: value.double() for key, value in add_updates(before, updates).items()}
    plain.load_state_dict(whole, assign=True)
    other = logits(plain.eval())
    assert (apart - unchanged).abs().max() > 1e-2, "the updates change something"
    torch.testing.assert_close(apart, other, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(logits(network.freeze()), other, rtol=1e-6, atol=1e-6)


def test_the_matrix_of_an_update_is_never_made(monkeypatch):
    """In a training step of every block: products with A and B alone, also for the rows of queries and keys."""
    network = network_of(spec_of("transformer", sigma=True))
    monkeypatch.setattr("unmask.model.adapter.LowRank.sum", property(lambda self: pytest.fail("B · A was made")))
    network.requires_grad_(False)
    updates = adapted(network)
    logits(network).square().mean().backward()
    assert all(parameter.grad is not None for parameter in updates.parameters())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_dropout_of_updates_is_in_training_only():
    network = network_of(spec_of("transformer"))
    updates = adapted(network, Adapter(rank=2, dropout=0.5))
    updates.eval()
    assert torch.equal(logits(network), logits(network))
    updates.train()
    torch.manual_seed(0)
    x = torch.randint(network.spec.vocab, (2, network.spec.length))
    one, two = (logits_at(network, x, None, torch.arange(x.numel())) for _ in range(2))
    assert not torch.equal(one, two)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank": 0, "alpha": 8.0}, "an adapter needs a rank of at least 1: give --adapter.rank 8."),
        ({"rank": -1}, "adapter.rank must be at least 0, not -1."),
        ({"rank": 2, "alpha": float("nan")}, "adapter.alpha must be a number above 0, not nan."),
        ({"rank": 2, "dropout": 1.0}, "adapter.dropout must be at least 0 and below 1, not 1.0."),
        ({"rank": 2, "targets": ("attn_kqv",)}, "Did you mean 'attn_qkv'? Known: "),
        ({"rank": 17}, "adapter.rank 17 is more than the layer blocks.0.attn_qkv has, which is 16 by 48: "),
    ],
)
def test_what_is_no_adapter_is_refused(settings, words):
    with pytest.raises(UserError) as error:
        Adapter(**settings).layers(network_of(spec_of("transformer")))
    assert words in str(error.value)


def test_targets_are_ends_of_names():
    network = network_of(spec_of("transformer", sigma=True))
    assert list(Adapter(rank=2, targets=("attn_qkv", "blocks.1.mlp.0")).layers(network)) == [
        "blocks.0.attn_qkv",
        "blocks.1.attn_qkv",
        "blocks.1.mlp.0",
    ]
    everything = Adapter(rank=2).layers(network)
    assert all(name.startswith("blocks.") for name in everything)
    assert Adapter(rank=2).parameters(network) == sum(
        p.numel() for p in LowRankUpdates(network, Adapter(rank=2)).parameters()
    )
