"""Passes in one stream: nothing leaks from what is read later, and from left to right they are autoregression."""

from dataclasses import replace

import pytest
import torch

from contracts.members import spec_of
from model.passes.test_doubled import random_network
from model.passes.test_ordered import MASK, some_rows
from unmask.errors import UserError
from unmask.model.backbone import build
from unmask.model.passes.aimed import aimed_pass, check_aimed
from unmask.model.passes.ordered import ordered_pass
from unmask.model.passes.whole import logits_at
from unmask.model.passing import Causal, Pass, Rule, join, split


def one_stream(network, clean, rank, **options):
    with torch.no_grad():
        logits = logits_at(network, clean, None, torch.arange(clean.numel()), rank=rank, **options)
    return logits.view(*clean.shape, -1)


@pytest.mark.parametrize("before", [False, True])
def test_from_left_to_right_it_is_the_autoregressive_network_if_that_is_where_its_weights_come_from(before):
    network, (clean, _) = random_network(before=before), some_rows()
    place = torch.arange(clean.shape[1]).expand_as(clean)
    causal = build(replace(network.spec, causal=True, reads_before=True)).to(next(network.parameters()).dtype)
    causal.load_state_dict(network.state_dict())
    with torch.no_grad():
        told = causal.head(causal.run(Pass(clean, Causal())).hidden)[:, :-1]
    apart = float((one_stream(network, clean, place)[:, 1:] - told).abs().max())
    assert apart < 1e-9 if before else apart > 1e-3


@pytest.mark.parametrize("build_pass", ["one stream", "two streams"])
def test_the_jacobian_of_a_prediction_is_zero_at_its_own_token_and_at_those_read_later(build_pass):
    network, (clean, rank) = random_network(before=False), some_rows(b=1)
    l = clean.shape[1]
    for position in range(l):
        if build_pass == "one stream":
            p = aimed_pass(network.spec, clean, rank, rows=torch.tensor([position]))
        else:
            p = ordered_pass(network.spec, torch.full_like(clean, MASK), clean, rank, rows=torch.tensor([position]))
        if int(rank[0, position]) == 0:
            continue  # nothing was read before
        vectors = network.embed(p.x).detach().requires_grad_(True)
        network.head(network.run(replace(p, x=vectors)).hidden).square().sum().backward()
        slope = vectors.grad.abs().sum(-1)[0, :l]  # of the contents
        places = p.positions.expand(1, -1)[0, :l]
        read = rank[0, places] < rank[0, position]
        assert float(slope[~read].abs().max()) == 0.0
        assert bool((slope[read] > 0).all())


def test_the_contents_of_two_streams_are_a_stream_whose_tokens_look_from_their_own_places():
    network, (clean, rank) = random_network(before=False), some_rows()
    order, l = rank.argsort(1), clean.shape[1]
    two = ordered_pass(network.spec, torch.full_like(clean, MASK), clean, rank, rows=torch.arange(0))
    one = replace(aimed_pass(network.spec, clean, rank, rows=torch.arange(0)), aim=None, wanted=None)
    with torch.no_grad():
        contents = network.run(replace(two, wanted=None)).hidden[:, :l]
        stream = network.run(one).hidden
    index = order[..., None].expand_as(stream)
    torch.testing.assert_close(stream, contents.gather(1, index))


def test_where_a_token_looks_from_matters_and_padding_is_not_seen():
    network, (clean, rank) = random_network(before=False), some_rows()
    p = aimed_pass(network.spec, clean, rank, rows=torch.arange(clean.numel()))
    with torch.no_grad():
        assert float((network.run(p).hidden - network.run(replace(p, aim=None)).hidden).abs().max()) > 1e-3
        short = one_stream(network, clean[:, :5], rank[:, :5].argsort(1).argsort(1))
        padded = one_stream(network, clean, rank, lengths=torch.tensor([5, 5, 5]))
    first = rank[:, :5].argsort(1)[:, 0]  # given: nobody predicts it
    kept = torch.ones(3, 5, dtype=torch.bool).scatter(1, first[:, None], False)
    torch.testing.assert_close(short[kept], padded[:, :5][kept])


def test_joined_passes_keep_their_aims():
    network, (clean, rank) = random_network(before=False), some_rows()
    passes = [
        aimed_pass(network.spec, clean, rank, rows=torch.tensor([3, 9])),
        Pass(clean[:1, :3], Rule(torch.ones(3, 3).bool())),
    ]
    with torch.no_grad():
        together = join(passes)
        for one, p in zip(split(together, network.run(together)), passes, strict=True):
            torch.testing.assert_close(one.hidden, network.run(p).hidden)


def test_networks_that_cannot_are_refused():
    check_aimed(spec_of("transformer"))
    bert = spec_of("bert")
    with pytest.raises(UserError, match="cannot read in any order in one stream"):
        check_aimed(bert)
    place = torch.arange(4)
    with pytest.raises(UserError, match="no positions that rotate"):
        build(bert).run(Pass(torch.zeros(1, 4, dtype=torch.long), position=place, aim=place))
