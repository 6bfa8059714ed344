"""Any-order generation: its law by enumeration, and a cache that changes no token."""

from dataclasses import replace
from functools import partial
from itertools import permutations

import pytest
import torch

from contracts.members import model_of
from diffusion.test_block_exact import small_network
from exact import chi_square_p, every_text
from model.passes.test_doubled import random_network
from quick import first_few
from unmask.diffusion.any_order import AnyOrder
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.one_stream import OneStream
from unmask.model.passes.whole import logits_at
from unmask.random import Noise
from unmask.sampling.any_order import AnyOrderProcess
from unmask.sampling.drafted import NextBlanks
from unmask.sampling.fitting import process_for, samplers_for
from unmask.sampling.masked import Sliding
from unmask.sampling.one_stream import OneStreamProcess
from unmask.sampling.policy import POLICIES, policy_of
from unmask.sampling.process import answer, run
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import blank, of_tokens

MASK = 6


def last(steps):
    *_, end = steps
    return end


def law(network, texts, orders, frozen=None, kind=AnyOrder):
    """The probability of each text: the mean over orders."""
    total = torch.zeros(len(texts), dtype=torch.double)
    for order in orders:
        noise = Noise(torch.full((len(texts),), 0.5), (torch.tensor(order) / len(order)).expand(texts.shape))
        with torch.no_grad():
            clean = CleanRows(texts, noise, mask=3, frozen=frozen)
            nats = kind(left=0, ramp=0).nats(partial(logits_at, network), clean).bound
        total += (-nats.sum(1).double()).exp()
    return {tuple(text): float(p) / len(orders) for text, p in zip(texts.tolist(), total, strict=True)}


@pytest.mark.parametrize("cached", [True, False])
def test_first_hitting_draws_the_mean_over_orders(cached):
    network = small_network(before=False)
    drawn = last(run(AnyOrderProcess(cached=cached), network, blank(600, 3, mask=3), seed=3)).canvas.tokens
    assert chi_square_p(law(network, every_text(3, 3), list(permutations(range(3)))), drawn) > 1e-3


def test_left_to_right_draws_the_exact_law_of_that_order_round_given_text():
    network, texts = small_network(before=False), every_text(3, 4)
    texts = texts[texts[:, 2] == 1]
    canvas = of_tokens(torch.tensor([[3, 3, 1, 3]]).expand(600, -1), mask=3)
    one = AnyOrderProcess(policy_of("left-to-right"))
    drawn = last(run(one, network, canvas, seed=5)).canvas.tokens
    frozen = torch.tensor([False, False, True, False]).expand(texts.shape)
    assert chi_square_p(law(network, texts, [range(4)], frozen), drawn) > 1e-3


@pytest.mark.parametrize("before", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("cached", [True, False])
def test_one_stream_draws_the_mean_over_the_orders_that_begin_with_the_given_token(before, cached):
    network, texts = small_network(before=before), every_text(3, 4)
    texts = texts[texts[:, 0] == 2]
    canvas = of_tokens(torch.tensor([[2, 3, 3, 3]]).expand(600, -1), mask=3)
    drawn = last(run(OneStreamProcess(network.spec, cached=cached), network, canvas, seed=3)).canvas.tokens
    orders = [(0, *order) for order in permutations((1, 2, 3))]
    assert chi_square_p(law(network, texts, orders, kind=OneStream), drawn) > 1e-3


def test_in_one_stream_a_call_reads_each_token_once_and_several_questions_do_not_see_each_other():
    network, sizes = random_network(before=True), []
    one = OneStreamProcess(network.spec)
    state = one.begin(of_tokens(torch.tensor([[1, 2, 3, 6, 6, 6, 4]]), mask=MASK), seed=1)
    while (asked := one.ask(state)) is not None:
        sizes.append(asked.passes[0].x.shape[1])
        state, _ = one.commit(state, asked, answer(network, asked))
    assert sizes == [4, 1, 1], "the price of an autoregressive network"
    row = torch.tensor([[1, 2, 3, MASK, MASK, MASK, 4]])
    together = replace(one, policy=NextBlanks(count=3))
    replies = answer(network, together.ask(together.begin(of_tokens(row, mask=MASK)))).logits
    for place, reply in zip((3, 4, 5), replies, strict=True):
        only = replace(of_tokens(row, mask=MASK), frozen=torch.arange(7)[None] != place)
        torch.testing.assert_close(answer(network, one.ask(one.begin(only))).logits[0], reply)


NAMES = samplers_for(AnyOrder())


def test_every_masked_sampler_fits():
    assert {"first-hitting", "left-to-right", "ancestral", "confidence"} <= set(NAMES)
    assert process_for(POLICIES["confidence"].needs, AnyOrder.facts.gives) is AnyOrderProcess


@pytest.fixture(scope="module", params=["any-order", "one-stream"])
def model(request, tmp_path_factory):
    return model_of(tmp_path_factory.mktemp("model") / request.param, request.param)


@pytest.mark.parametrize("name", first_few(NAMES))
def test_a_memory_changes_no_token(model, name):
    one = method_for(model, Recipe(sampler=name, steps=4 if POLICIES[name].budget else None)).process
    row = torch.full((3, 10), model.mask)
    row[:, 0], row[:, 6] = 1, 2
    canvas = of_tokens(row, mask=model.mask)
    with_memory = last(run(one, model.network, canvas, seed=2)).canvas.tokens
    without = last(run(replace(one, cached=False), model.network, canvas, seed=2)).canvas.tokens
    assert torch.equal(with_memory, without)
    alone = last(run(one, model.network, canvas.take(torch.tensor([1])), seed=2, ids=torch.tensor([1]))).canvas.tokens
    assert torch.equal(alone[0], with_memory[1]), "a row does not depend on its batch"


def test_a_call_reads_new_tokens_and_questions_only():
    network, sizes = random_network(before=False), []
    one = AnyOrderProcess()
    state = one.begin(of_tokens(torch.tensor([[1, 2, 3, 6, 6, 6, 4]]), mask=MASK), seed=1)
    while (asked := one.ask(state)) is not None:
        sizes.append(asked.passes[0].x.shape[1])
        state, _ = one.commit(state, asked, answer(network, asked))
    assert sizes == [4 + 1, 1 + 1, 1 + 1]


@pytest.mark.parametrize("streams", [1, 2])
def test_windows_read_what_they_show(streams):
    network = random_network(before=False)
    windows = Sliding(6, 3)
    one = AnyOrderProcess(windows=windows) if streams == 2 else OneStreamProcess(network.spec, windows=windows)
    canvas = of_tokens(torch.tensor([[3, *[MASK] * 14]]).expand(2, -1), mask=MASK)
    drawn = last(run(one, network, canvas, seed=4)).canvas.tokens
    assert not bool((drawn == MASK).any())
    assert torch.equal(drawn, last(run(replace(one, cached=False), network, canvas, seed=4)).canvas.tokens)


def batches_of(one, network, canvas, *, seed: int) -> tuple[list[list[int]], torch.Tensor]:
    """The rows of each pass of each call, and the text."""
    state, sizes = one.begin(canvas, seed=seed), []
    while (asked := one.ask(state)) is not None:
        sizes.append([len(p.x) for p in asked.passes])
        state, _ = one.commit(state, asked, answer(network, asked))
    return sizes, one.canvas(state).tokens


@pytest.mark.parametrize("streams", [1, 2])
def test_rows_that_read_alike_are_one_pass_and_share_a_memory(streams):
    network = random_network(before=False)
    one = AnyOrderProcess() if streams == 2 else OneStreamProcess(network.spec, policy_of("left-to-right"))
    texts = torch.full((4, 7), MASK)
    texts[:, 0] = 1
    sizes, tokens = batches_of(one, network, of_tokens(texts, mask=MASK), seed=5)
    assert sizes == [[4]] * 6
    for row in range(4):
        canvas = of_tokens(texts[row : row + 1], mask=MASK)
        own = last(run(one, network, canvas, seed=5, ids=torch.tensor([row]))).canvas.tokens
        assert torch.equal(own[0], tokens[row])


@pytest.mark.parametrize("streams", [1, 2])
def test_rows_that_differ_in_what_is_given_are_read_apart(streams):
    network = random_network(before=False)
    one = AnyOrderProcess() if streams == 2 else OneStreamProcess(network.spec, policy_of("left-to-right"))
    texts = torch.full((3, 9), MASK)
    texts[:, 0] = 1
    texts[1, 4:] = torch.tensor([2, 3, 0, 4, 5])
    canvas = of_tokens(texts, mask=MASK)
    sizes, tokens = batches_of(one, network, canvas, seed=6)
    assert sizes[0] == [1, 1, 1]
    assert torch.equal(tokens, last(run(replace(one, cached=False), network, canvas, seed=6)).canvas.tokens)


def test_a_row_that_is_done_is_taken_out_of_the_shared_memory():
    network, one = random_network(before=False), AnyOrderProcess()
    texts = torch.full((3, 8), MASK)
    texts[:, 0] = 1
    state = one.begin(of_tokens(texts, mask=MASK), seed=7)
    for _ in range(3):
        asked = one.ask(state)
        assert [len(p.x) for p in asked.passes] == [3]
        state, _ = one.commit(state, asked, answer(network, asked))
    canvas = state.work.canvas
    tokens = canvas.tokens.clone()
    tokens[1] = tokens[1].where(tokens[1] != MASK, 0)
    after = replace(state, work=replace(state.work, canvas=replace(canvas, tokens=tokens)))
    left, again = one.ask(after), one.ask(replace(after, memories=(None, None, None)))
    assert [len(p.x) for p in left.passes] == [2]
    torch.testing.assert_close(answer(network, left).logits, answer(network, again).logits, rtol=1e-4, atol=1e-5)
