"""Caches of stale keys: refreshed in every call they change nothing, and in one layer nothing is stale."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from exact import total_variation
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.sampling.masked import Masked, Sliding, Whole
from unmask.sampling.policies.planned import FirstHitting, Groups
from unmask.sampling.policy import policy_of
from unmask.sampling.process import NetworkAnswer, answer, run
from unmask.sampling.stale import CACHES, Confidence, Dual, IntervalCache, Prefix, Stale
from unmask.text.prompt.canvas import blank

LETTERS, LENGTH = 2, 3
MASK = LETTERS


def network(*, blocks: int, before: bool = False) -> Transformer:
    generator = torch.Generator().manual_seed(0)
    net = Transformer(
        Architecture(vocab=MASK + 1, length=LENGTH, width=16, blocks=blocks, heads=2, cond=0, reads_before=before)
    )
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.6 * torch.randn(p.shape, generator=generator))
    return net.freeze()


def drawn(net, cache, policy, *, rows=2, length=LENGTH, windows=None, seed=0):
    process = Masked(policy, windows or Whole())
    process = process if cache is None else Stale(process, cache, net.spec)
    return list(run(process, net, blank(rows, length, mask=MASK), seed=seed))[-1].canvas.tokens


POLICIES = [FirstHitting(), Groups(calls=3), policy_of("confidence", steps=4)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("name", sorted(CACHES))
def test_a_cache_that_is_refreshed_in_every_call_is_no_cache(name, before, policy):
    net, cache = network(blocks=3, before=before), CACHES.make(f"{name}:every=1")
    for windows, length in ((None, 6), (Sliding(4, 2), 6)):
        plain = drawn(net, None, policy, length=length, windows=windows)
        assert torch.equal(drawn(net, cache, policy, length=length, windows=windows), plain)
    assert Stale(Masked(policy), cache, net.spec).law == Masked(policy).law


@pytest.mark.parametrize("tau", [0.0, 0.6, 1.0])
def test_an_uncertain_answer_is_followed_by_a_reading_of_the_whole_row(tau):
    net = network(blocks=3)
    process = Stale(Masked(FirstHitting()), Confidence(tau=tau), net.spec)
    state, uncertain, read = process.begin(blank(1, 12, mask=MASK), seed=1), [True], []
    while (asked := process.ask(state)) is not None:
        read.append(asked.passes[0].x.shape[1] == 12)
        reply = answer(net, asked)
        uncertain.append(tau == 1 or float(reply.logits.softmax(-1).max()) < tau)
        state, _ = process.commit(state, asked, reply)
    assert read == uncertain[:-1]
    assert tau != 0.6 or 1 < sum(read) < 12
    if tau == 1:
        assert process.law == Masked(FirstHitting()).law
        plain = drawn(net, None, FirstHitting(), length=12, seed=1)
        assert torch.equal(drawn(net, Confidence(tau=1.0), FirstHitting(), length=12, seed=1), plain)
    else:
        assert "stale keys" in process.law


@pytest.mark.parametrize("cache", [IntervalCache(every=50), Prefix(every=50), Dual(every=50)])
@pytest.mark.parametrize("before", [False, True])
def test_a_network_of_one_layer_has_no_stale_keys(cache, before):
    net = network(blocks=1, before=before)
    for policy in POLICIES:
        assert torch.equal(drawn(net, cache, policy, length=6), drawn(net, None, policy, length=6))


def test_a_call_reads_the_new_and_the_asked_positions_alone():
    net = network(blocks=2)
    process = Stale(Masked(FirstHitting()), IntervalCache(every=5), net.spec)
    state, sizes = process.begin(blank(1, 12, mask=MASK)), []
    while (asked := process.ask(state)) is not None:
        sizes.append(asked.passes[0].x.shape[1])
        states = net.run(asked.passes[0])
        state, _ = process.commit(state, asked, NetworkAnswer(net.head(states.hidden), (states.memory,)))
    assert sizes == [12, 2, 2, 2, 2, 12, 2, 2, 2, 2, 12, 2]


def law_from_left(net, cache, length=5) -> dict[tuple[int, ...], float]:
    """The exact law of writing from left to right: every token of every call in turn, with its probability."""
    masked = Masked(policy_of("left-to-right"))
    process = masked if cache is None else Stale(masked, cache, net.spec)
    states, law = [(1.0, process.begin(blank(1, length, mask=MASK)))], {}
    while states:
        chance, state = states.pop()
        state = deepcopy(state)  # a pass writes over what other branches remember
        if (asked := process.ask(state)) is None:
            law[tuple(process.canvas(state).tokens[0].tolist())] = chance
            continue
        told = answer(net, asked)
        for letter, p in enumerate(told.logits[0, :LETTERS].softmax(-1).tolist()):
            sure = torch.full_like(told.logits, -torch.inf).index_fill(1, torch.tensor([letter]), 0.0)
            states.append((chance * p, process.commit(state, asked, replace(told, logits=sure))[0]))
    return law


def test_the_law_with_stale_keys_is_near_the_exact_one_and_not_it_by_enumeration():
    net = network(blocks=3)
    exact, fresh, stale = (
        law_from_left(net, cache) for cache in (None, IntervalCache(every=1), IntervalCache(every=5))
    )
    assert sum(stale.values()) == pytest.approx(1, abs=1e-5)
    assert total_variation(exact, fresh) < 1e-5
    assert 1e-3 < total_variation(exact, stale) < 0.3
    assert "stale keys" in Stale(Masked(), IntervalCache(every=5), net.spec).law


def test_networks_without_stale_keys_and_wrong_numbers_are_refused():
    with pytest.raises(UserError, match="leave the cache out"):
        Stale(Masked(), IntervalCache(), Architecture(causal=True, cond=0))
    with pytest.raises(UserError, match="refreshed after 1 call or more"):
        CACHES.make("dual:every=0")
    with pytest.raises(UserError, match="cache"):
        CACHES.make("duel")
