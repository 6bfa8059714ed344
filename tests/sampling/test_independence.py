"""A row's result is its own: batch size, order, padding and neighbours change nothing; frozen tokens stay."""

from functools import partial

import pytest
import torch

import exact
from sampling.laws import last
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.passes.whole import logits_at
from unmask.sampling.autoregressive import AutoregressiveProcess, continue_text
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import BlockWindows, Sliding, ask, begin, commit, fill
from unmask.sampling.policies.confidence import Leftmost, Ordered
from unmask.sampling.policies.parallel import Certificate, EntropyBound, Klass, Threshold
from unmask.sampling.policies.planned import Ancestral, FirstHitting, Groups
from unmask.sampling.policies.reverse import Analytic, D3PMReverse
from unmask.sampling.process import run
from unmask.text.prompt.canvas import Canvas, blank, of_rows, of_tokens

pytestmark = pytest.mark.slow

MASK, VOCAB, LENGTH = 11, 12, 14
POLICIES = [
    FirstHitting(),
    Ancestral(9),
    Groups(calls=5),
    Ordered("confidence"),
    Ordered("margin", calls=4),
    Ordered("entropy", calls=6),
    Ordered(draw_first=True, calls=7),
    Leftmost(),
    Leftmost(calls=5),
    Threshold(0.2),
    Certificate(),
    EntropyBound(3.0),
    Klass(0.15, moved=0.5, calls_settled=1),
    D3PMReverse(8),
    Analytic(8),
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{type(p).__name__}-{p.law[:24]}")


def transformer(*, causal=False, dtype=torch.float32):
    torch.manual_seed(0)
    cond = 0 if causal else 8
    net = Transformer(
        Architecture(
            VOCAB,
            LENGTH,
            width=32,
            blocks=2,
            heads=2,
            cond=cond,
            time_conditioning=not causal,
            causal=causal,
            reads_before=causal,
        )
    )
    for parameter in net.parameters():  # a new network says nothing: its head is zero
        torch.nn.init.normal_(parameter, std=0.25)
    return net.to(dtype).freeze()


@pytest.fixture(scope="module")
def net():
    return transformer()


def some_rows(seed=0, rows=7, length=LENGTH):
    """Rows of random text with random blanks, some frozen as masks would never be."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, MASK, (rows, length), generator=generator)
    hide = torch.rand(rows, length, generator=generator) < torch.linspace(0.2, 1, rows)[:, None]
    return torch.where(hide, MASK, tokens)


@every_policy
@pytest.mark.parametrize("windows", [None, Sliding(8, 3), BlockWindows(5)], ids=str)
def test_no_mask_is_left_and_frozen_tokens_never_change(net, policy, windows):
    canvas = of_tokens(some_rows(), mask=MASK)
    before, seen = canvas.tokens, torch.zeros_like(canvas.frozen)
    for step in fill(partial(logits_at, net), canvas, policy, windows=windows):
        changed = torch.zeros_like(seen).flatten().index_fill(0, step.rows, True).view_as(seen)
        assert torch.equal(step.canvas.tokens != before, changed)
        assert torch.equal(step.canvas.tokens.flatten()[step.rows], step.tokens)
        before, seen = step.canvas.tokens, seen | changed
    assert torch.equal(seen, canvas.hidden)
    assert not bool((before == MASK).any())


@every_policy
def test_batch_size_order_and_neighbours_change_nothing(net, policy):
    tokens, ids = some_rows(), torch.arange(7)
    whole = last(fill(partial(logits_at, net), of_tokens(tokens, mask=MASK), policy, seed=5)).canvas.tokens
    shuffled = torch.tensor([4, 0, 6, 2, 5, 1, 3])
    other = last(
        fill(partial(logits_at, net), of_tokens(tokens[shuffled], mask=MASK), policy, seed=5, ids=ids[shuffled])
    )
    assert torch.equal(other.canvas.tokens, whole[shuffled])
    for i in ids:
        alone = last(
            fill(partial(logits_at, net), of_tokens(tokens[i : i + 1], mask=MASK), policy, seed=5, ids=ids[i : i + 1])
        )
        assert torch.equal(alone.canvas.tokens[0], whole[i])


@every_policy
def test_padding_changes_nothing(net, policy):
    rows = [row[:length].tolist() for row, length in zip(some_rows(1), [3, 14, 9, 5, 14, 7, 11], strict=True)]
    rows = [row if MASK in row else [MASK, *row[1:]] for row in rows]
    canvas = of_rows(rows, mask=MASK)
    padded = last(fill(partial(logits_at, net), canvas, policy, seed=2)).canvas.tokens
    for i, row in enumerate(rows):
        alone = last(
            fill(
                partial(logits_at, net),
                of_tokens(torch.tensor([row]), mask=MASK),
                policy,
                seed=2,
                ids=torch.tensor([i]),
            )
        )
        assert torch.equal(alone.canvas.tokens[0], padded[i, : len(row)])
    assert bool((padded[~(torch.arange(LENGTH) < canvas.lengths[:, None])] == MASK).all())


@pytest.mark.slow
@pytest.mark.parametrize("windows", [Sliding(8, 3), BlockWindows(5)], ids=str)
def test_windows_keep_rows_independent(net, windows):
    tokens = some_rows(3, length=30)
    whole = last(fill(partial(logits_at, net), of_tokens(tokens, mask=MASK), windows=windows)).canvas.tokens
    for i in range(7):
        one = of_tokens(tokens[i : i + 1], mask=MASK)
        alone = last(fill(partial(logits_at, net), one, windows=windows, ids=torch.tensor([i])))
        assert torch.equal(alone.canvas.tokens[0], whole[i])


def test_a_thousand_rows_are_the_rows_of_small_batches_on_an_exact_world():
    world = exact.TableWorld.random(0)
    whole = last(fill(world.network, blank(1000, 3, mask=3), seed=9)).canvas.tokens
    parts = [
        last(fill(world.network, blank(125, 3, mask=3), seed=9, ids=torch.arange(i, i + 125))).canvas.tokens
        for i in range(0, 1000, 125)
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(last(fill(world.network, blank(1000, 3, mask=3), seed=10)).canvas.tokens, whole)


def test_first_hitting_takes_one_call_a_blank_whatever_the_batch_and_finished_rows_leave(net):
    tokens = some_rows(4)
    blanks = (tokens == MASK).sum(1)
    live = [step.live for step in fill(partial(logits_at, net), of_tokens(tokens, mask=MASK))]
    assert live == [int((blanks > call).sum()) for call in range(int(blanks.max()))]


@pytest.mark.parametrize("policy", [FirstHitting(), Ancestral(6), Groups(calls=4)], ids=str)
def test_planned_samplers_ask_only_for_rows_about_to_be_revealed(net, policy):
    asked = []

    def network(x_t, sigma, rows):
        asked.append(len(rows))
        return logits_at(net, x_t, sigma, rows)

    steps = list(fill(network, of_tokens(some_rows(), mask=MASK), policy))
    assert asked == [len(step.rows) for step in steps]
    assert sum(asked) == int((some_rows() == MASK).sum())


def test_a_visible_token_that_is_not_frozen_is_kept_and_a_frozen_mask_is_not_filled(net):
    tokens = torch.tensor([[MASK, 3, MASK, MASK]])
    canvas = Canvas(tokens, torch.tensor([[False, False, True, False]]), MASK)
    end = last(fill(partial(logits_at, net), canvas)).canvas.tokens[0].tolist()
    assert end[1:3] == [3, MASK]
    assert MASK not in (end[0], end[3])


def test_a_canvas_without_blanks_takes_no_call(net):
    assert list(fill(partial(logits_at, net), of_tokens(torch.tensor([[1, 2, 3]]), mask=MASK))) == []


def test_log_probs_are_those_of_the_model_before_temperature(net):
    canvas = of_tokens(some_rows(), mask=MASK)
    first = next(fill(partial(logits_at, net), canvas, options=LogitOptions(temperature=0.3, top_k=2)))
    question = ask(begin(canvas, FirstHitting()))
    logits = logits_at(net, question.tokens, question.sigma, question.rows)
    logits[:, MASK] = -torch.inf
    expected = logits.log_softmax(-1)[torch.arange(len(first.tokens)), first.tokens]
    assert torch.allclose(first.log_probs, expected)


def test_works_with_different_policies_can_share_network_calls(net):
    """What a server does: one call a tick for all canvases, each with its own policy; the rows come out the same."""
    policies = [FirstHitting(), Ordered("entropy", calls=3), Ancestral(5)]
    rows = [some_rows(i, rows=2) for i in range(3)]
    works = [begin(of_tokens(r, mask=MASK), p, seed=i) for i, (r, p) in enumerate(zip(rows, policies, strict=True))]
    expected = [
        last(fill(partial(logits_at, net), of_tokens(r, mask=MASK), p, seed=i)).canvas.tokens
        for i, (r, p) in enumerate(zip(rows, policies, strict=True))
    ]
    while any(questions := [ask(work) for work in works]):
        live = [(i, q) for i, q in enumerate(questions) if q is not None]
        offset, flat = 0, []
        for _, q in live:
            flat.append(q.rows + offset)
            offset += q.tokens.numel()
        tokens, sigma = torch.cat([q.tokens for _, q in live]), torch.cat([q.sigma for _, q in live])
        answers = logits_at(net, tokens, sigma, torch.cat(flat)).split([len(q.rows) for _, q in live])
        for (i, q), logits in zip(live, answers, strict=True):
            works[i], _ = commit(works[i], q, logits)
    assert all(torch.equal(work.canvas.tokens, e) for work, e in zip(works, expected, strict=True))


def test_the_autoregressive_cache_changes_nothing_also_when_rows_differ_in_prompt_and_length():
    net = transformer(causal=True)
    rows = [[1, *[MASK] * 13], [2, 3, 4, *[MASK] * 5], [5, 1, *[MASK] * 9]]
    canvas = of_rows(rows, mask=MASK)

    without = list(run(AutoregressiveProcess(), net, canvas, seed=3))  # all of a row in every call
    slow = without[-1].canvas.tokens
    for step, told in zip(continue_text(net, canvas, seed=3), without, strict=True):
        assert torch.equal(step.canvas.tokens, told.canvas.tokens)
        torch.testing.assert_close(step.log_probs, told.log_probs, rtol=1e-4, atol=1e-5)
    for i, row in enumerate(rows):
        one = of_tokens(torch.tensor([row]), mask=MASK)
        alone = last(run(AutoregressiveProcess(cached=True), net, one, seed=3, ids=torch.tensor([i])))
        assert torch.equal(alone.canvas.tokens[0], slow[i, : len(row)])
