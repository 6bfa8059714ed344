"""Block diffusion as a process: the recorded runs, the law by enumeration, and a cache that changes nothing."""

import gc
import re
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch

import unmask
from contracts.members import LETTERS, model_of
from diffusion.test_block_exact import small_network
from exact import chi_square_p, every_text
from model.golden import arrays_of, distance
from model.passes.test_doubled import GOLDEN, golden_network, random_network
from unmask.diffusion.block import BlockDiffusion
from unmask.diffusion.block_exact import ExactLikelihood
from unmask.diffusion.clean import CleanRows
from unmask.errors import UserError
from unmask.model.passes.pieces import BlockRule, piece
from unmask.model.passes.whole import logits_at
from unmask.model.passing import Empty
from unmask.random import Noise
from unmask.sampling.blockwise import Blockwise
from unmask.sampling.fitting import samplers_for
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Sliding
from unmask.sampling.policies.planned import Ancestral, FirstHitting
from unmask.sampling.policy import POLICIES, policy_of
from unmask.sampling.process import answer, run
from unmask.sampling.recipe import Recipe, doubt, method_for
from unmask.sampling.score import log_likelihood
from unmask.text.prompt.canvas import blank, of_prompt, of_rows, of_tokens

MASK = 6


def process(network, size=4, window=64, policy=None, **options):
    chosen = {} if policy is None else {"policy": policy}
    return Blockwise(size, window, network.spec.before, **chosen, **options)


def last(steps):
    *_, end = steps
    return end


def replayed(cases, name, *, window=10**6, nucleus=1.0):
    """A recorded run, drawn with our cache and the recorded random numbers; and the number of calls."""
    network, mask, size = golden_network().freeze(), int(cases["mask_index"]), 4
    row, memory, calls = torch.full((24,), mask), Empty(), 0
    row[0], left = int(cases["bos"]), list(range(len(cases[f"run_{name}_u"])))
    told = cases[f"run_{name}_logits"][~cases[f"run_{name}_store"]]
    for first in range(0, 24, size):
        while (hidden := (row[first : first + size] == mask).nonzero().squeeze(1)).numel():
            draw = left.pop(0)
            tokens, wanted = row[memory.filled : first + size], torch.arange(size)
            with torch.no_grad():
                states = network.run(piece(BlockRule(size, window), tokens, memory, first=first, wanted=wanted))
            logits, memory = network.head(states.hidden), states.memory
            assert distance(logits[hidden], told[draw, 0][hidden]) < 5e-5
            p = logits.double().index_fill(1, torch.tensor([mask]), -torch.inf).softmax(-1)
            if nucleus < 1:
                value, order = p.sort(-1, descending=True)
                keep = value.cumsum(-1) <= nucleus
                keep[:, 0] = True
                p = torch.zeros_like(p).scatter(1, order, torch.where(keep, value, 0.0))
            token = (p / (1e-10 - (cases[f"run_{name}_u"][draw, 0] + 1e-10).log())).argmax(-1)
            at = int(hidden[int(cases[f"run_{name}_pick"][draw, 0])])
            row[first + at] = token[at]
            calls += 1
    return row, calls


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nucleus"), [("fh_p1", 1.0), ("fh_p0.9", 0.9)])
def test_a_recorded_run_is_replayed_token_for_token_without_calls_that_only_store(name, nucleus):
    cases = arrays_of(GOLDEN / "block_tiny_cases.npz")
    row, calls = replayed(cases, name, nucleus=nucleus)
    assert torch.equal(row, cases[f"run_{name}_x"][0].long())
    assert calls == int(cases[f"run_{name}_nfe"]) == 23
    assert len(cases[f"run_{name}_store"]) == 29, "the original's calls"


@pytest.mark.slow
def test_a_window_that_slides_is_the_originals_cached_model():
    cases = arrays_of(GOLDEN / "block_tiny_cases.npz")
    row, _ = replayed(cases, "slide", window=int(cases["run_slide_window"]))
    assert torch.equal(row, cases["run_slide_x"][0].long())


@pytest.mark.slow
@pytest.mark.parametrize(("before", "size"), [(False, 3), (True, 2)])
def test_first_hitting_follows_the_likelihood_that_evaluation_gives(before, size):
    network, texts, draws = small_network(before=before), every_text(3, 4), 800
    noise = Noise(torch.zeros(len(texts)), torch.zeros(len(texts), 4))
    with torch.no_grad():
        nats = (
            ExactLikelihood(size)
            .nats(partial(logits_at, network), CleanRows(texts, noise=noise, mask=3))
            .bound.sum(1)
        )
    law = {tuple(text): float(p) for text, p in zip(texts.tolist(), (-nats).exp(), strict=True)}
    drawn = last(run(process(network, size), network, blank(draws, 4, mask=3), seed=3)).canvas.tokens
    assert chi_square_p(law, drawn) > 1e-3


@pytest.mark.parametrize("before", [False, True])
def test_every_call_shows_the_logits_that_training_and_evaluation_have(before):
    """The first position of a block too, which some networks predict from a second reading of the token before."""
    network, canvas = random_network(before=before), of_prompt([1, 2, 3], length=14, rows=2, mask=MASK)
    one = process(network)
    state = one.begin(canvas, seed=3)
    while (asked := one.ask(state)) is not None:
        given = answer(network, asked)
        shown = asked.tokens
        with torch.no_grad():
            told = logits_at(network, shown, None, asked.rows, clean=shown, size=4)
        torch.testing.assert_close(given.logits, told, rtol=1e-9, atol=1e-9)
        state, _ = one.commit(state, asked, given)


@pytest.mark.parametrize("before", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("window", [pytest.param(64, marks=pytest.mark.slow), 8])
def test_cached_and_recomputed_rows_are_equal_also_when_the_window_slides(before, window):
    network, canvas = random_network(before=before), of_prompt([1, 2, 3], length=30, rows=3, mask=MASK)
    one = process(network, window=window)
    cached, again = (list(run(p, network, canvas, seed=5)) for p in (one, replace(one, cached=False)))
    assert torch.equal(cached[-1].canvas.tokens, again[-1].canvas.tokens)
    assert len(cached) == len(again) == 27, "1 call for the rest of the first block, 4 for each of 6, 2 for the last"


@pytest.mark.slow
@pytest.mark.parametrize("name", samplers_for(BlockDiffusion()))
def test_every_policy_fills_blocks_alike_with_and_without_a_cache(name):
    network, canvas = random_network(before=True), of_prompt([1, 2], length=13, rows=2, mask=MASK)
    one = process(network, policy=policy_of(name, steps=3 if POLICIES[name].budget else None))
    ends = [last(run(p, network, canvas, seed=2)).canvas.tokens for p in (one, replace(one, cached=False))]
    assert torch.equal(*ends)
    assert (ends[0] != MASK).all()


def elements(network, canvas, one, seed=0):
    """Tokens that the network computes in each call."""
    state, found = one.begin(canvas, seed=seed), []
    while (asked := one.ask(state)) is not None:
        found.append(sum(p.keep + int((p.positions[p.keep :] >= p.positions[p.keep]).sum()) for p in asked.passes))
        state, _ = one.commit(state, asked, answer(network, asked))
    return found


@pytest.mark.slow
def test_a_call_computes_one_block_and_the_one_before_it_once():
    network, canvas = random_network(before=False), blank(1, 64, mask=MASK)
    found = elements(network, canvas, process(network, window=16))
    assert found == [4, 4, 4, 4, *[8, 4, 4, 4] * 15]


@pytest.mark.slow
def test_a_prompt_is_read_by_the_first_call():
    network = random_network(before=True)
    canvas = of_prompt([1, 2, 3, 4, 5, 0], length=12, mask=MASK)
    assert elements(network, canvas, process(network)) == [8, 4, 8, 4, 4, 4]


@pytest.mark.slow
def test_rows_of_different_lengths_and_blanks_give_what_each_gives_alone():
    network = random_network(before=True)
    rows = [[1, MASK, 2, MASK, MASK], [0, 1, 2, 3, 4, 5, MASK, MASK, MASK, 2], [MASK] * 7]
    together = last(run(process(network), network, of_rows(rows, mask=MASK), seed=1)).canvas.tokens
    for i, row in enumerate(rows):
        alone = last(run(process(network), network, of_rows([row], mask=MASK), seed=1, ids=torch.tensor([i])))
        assert torch.equal(alone.canvas.tokens[0], together[i, : len(row)])
        assert all(t == given for t, given in zip(together[i].tolist(), row, strict=False) if given != MASK)


@pytest.mark.slow
def test_text_after_a_block_is_not_seen_and_text_within_it_is():
    network = random_network(before=True)
    tokens = torch.tensor([[MASK, MASK, 1, MASK, MASK, 2, MASK, 3]])
    one = process(network)

    def first_logits(changed):
        state = one.begin(of_tokens(changed, mask=MASK), seed=0)
        asked = one.ask(state)
        return answer(network, asked).logits

    told = first_logits(tokens)
    after, within = tokens.clone(), tokens.clone()
    after[0, 5], within[0, 2] = 4, 4
    assert torch.equal(first_logits(after), told)
    assert not torch.allclose(first_logits(within), told)


@pytest.mark.slow
def test_the_memory_of_a_finished_row_is_freed():
    network = random_network(before=True)
    rows = [[1, 2, 3, 4, 5, MASK], [1, 2, 3, 4, MASK, MASK, MASK, MASK, MASK, MASK]]
    one = process(network)
    state = one.begin(of_rows(rows, mask=MASK), seed=0)
    held = []
    while (asked := one.ask(state)) is not None:
        state, _ = one.commit(state, asked, answer(network, asked))
        held.append([memory is not None for memory in state.memories])
    assert held[0] == [False, True]
    assert held[-1] == [False, False]
    state = one.begin(of_rows(rows[1:], mask=MASK), seed=0)
    asked = one.ask(state)
    state, _ = one.commit(state, asked, answer(network, asked))
    kept = weakref.ref(state.memories[0].memory.layers[0][0])
    assert kept() is not None
    del state, asked
    gc.collect()
    assert kept() is None


@pytest.mark.slow
def test_a_model_says_its_blocks_and_its_window_and_takes_the_samplers_of_masked_diffusion(tmp_path):
    model = model_of(tmp_path / "m", BlockDiffusion(size=3))
    assert "threshold" in samplers_for(model.objective)
    assert method_for(model, Recipe()).law == "exact, in blocks of 3 tokens, each given the 9 tokens before it"
    law = method_for(model, Recipe(sampler="entropy", top_p=0.9, window=6)).law
    assert law.startswith("approximate (most certain token")
    assert law.endswith("with top-p 0.9, in blocks of 3 tokens, each given the 3 tokens before it")
    assert method_for(model, Recipe(sampler="ancestral", steps=5)).process.policy == Ancestral(5)


@pytest.mark.slow
def test_a_model_writes_texts_of_any_length_and_stops_at_the_end_of_a_document(tmp_path):
    model = model_of(tmp_path / "m", BlockDiffusion(size=4), text={"pack": "stream"})
    assert doubt(model, 200, Recipe()) is None
    one = unmask.sample(model, length=200, prompt="ab", seed=1, document=False)[0]
    assert len(one.tokens) == 200
    ended = unmask.sample(model, length=4096, prompt="ab", seed=1)[0]
    assert ended.tokens[-1] == LETTERS.eos
    assert len(ended.tokens) < 4096
    assert ended.calls <= len(ended.tokens) + 4


@pytest.mark.slow
def test_each_text_of_a_batch_stops_at_its_own_end(tmp_path):
    """The original stops a whole batch together, and at the second eos, because its bos is an eos too."""
    model = model_of(tmp_path / "m", BlockDiffusion(size=4), text={"pack": "stream"})
    together = unmask.sample(model, length=400, prompt="ab", seed=1, n=4)
    assert len({len(one.tokens) for one in together}) > 1
    alone = unmask.sample(model, length=400, prompt="ab", seed=1, n=4, batch=1)
    for one, other in zip(together, alone, strict=True):
        assert one.tokens == other.tokens
        assert one.tokens[-1] == LETTERS.eos
        assert LETTERS.eos not in one.tokens[1:-1]


@pytest.mark.slow
def test_blanks_are_filled_around_given_text_in_all_blocks(tmp_path):
    model = model_of(tmp_path / "m", BlockDiffusion(size=4))
    for sampler in ("first-hitting", "entropy"):
        (one,) = unmask.infill(model, "ab[3]cd[4]e", seed=2, sampler=sampler)
        assert re.fullmatch("ab.{0,3}cd.{0,4}e", one.text, re.DOTALL), one.text  # special tokens are not shown


@pytest.mark.slow
def test_patterns_hold_within_blocks(tmp_path):
    model = model_of(tmp_path / "m", BlockDiffusion(size=4))
    for sampler in ("first-hitting", "entropy"):
        for one in unmask.sample(model, prompt="ab", length=12, n=3, pattern="(cab|bed)+", sampler=sampler):
            assert set(one.text[2:].replace("cab", "").replace("bed", "")) <= {"\n"}, one.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"window": 7}, "at least two blocks of 4 tokens: give 8 or more; saw 7"),
        ({"window": 12, "stride": 3}, "leave the stride out"),
        ({"guidance": 2.0}, "guidance needs an mdlm model"),
        ({"sampler": "analytic"}, "needs scores, and the objective block gives"),
        ({"sampler": "autoregressive"}, "not for this model"),
    ],
)
def test_what_a_block_model_cannot_do_is_refused(tmp_path, changes, match):
    model = model_of(tmp_path / "m", "block")
    with pytest.raises(UserError, match=match):
        method_for(model, Recipe().changed(**changes))


@pytest.mark.slow
def test_a_cache_is_refused_by_a_network_that_cannot_give_one(tmp_path):
    for backbone in ("transformer", "mamba"):
        model = replace(model_of(tmp_path / backbone, "ar", backbone), objective=BlockDiffusion(size=4))
        with pytest.raises(UserError, match="no cache of blocks"):
            Blockwise.of(policy=FirstHitting(), options=LogitOptions(), windows=None, model=model)


@pytest.mark.slow
def test_the_usual_stride_is_half_a_window():
    assert Recipe(window=12).windows() == Sliding(12, 6) == Sliding.usual(12)
    assert replace(Recipe(window=12), stride=5).windows() == Sliding(12, 5)


@pytest.mark.slow
def test_texts_for_a_blank_are_ranked_by_what_follows_too(tmp_path):
    """By enumeration: the differences of the scores are those of log p(text), not of log p(blank | text before)."""
    model = model_of(tmp_path / "m", BlockDiffusion(size=2))
    rows = [torch.tensor([1, 2, token, 4, 5, 1]) for token in (3, 6, 7)]
    frozen = torch.tensor([True, True, False, True, True, True])
    assert model.objective.seen(frozen).tolist() == [True, True, False, True, False, False]
    scores = [log_likelihood(model, row, frozen, passes=400, seed=1) for row in rows]
    noise = Noise(torch.zeros(1), torch.zeros(1, 6))
    with torch.no_grad():
        bounds = [
            model.objective.estimators()["exact-bound"]
            .nats(
                partial(logits_at, model.network),
                CleanRows(
                    row[None],
                    noise=noise,
                    mask=model.mask,
                    frozen=model.objective.seen(frozen)[None],
                ),
            )
            .bound.sum()
            for row in rows
        ]
    for found, told in zip(scores, bounds, strict=True):
        assert abs(found.nats + float(told)) < 5 * found.error


@pytest.mark.slow
def test_ancestral_steps_draw_every_token_also_in_the_last_step():
    """The original's last step, at t = 0, fills what is still hidden with token 0."""
    network = random_network(before=False)
    with torch.no_grad():
        network.output_layer.linear.bias[0] = -1e4
    ended = last(run(process(network, policy=Ancestral(2)), network, blank(20, 8, mask=MASK), seed=0)).canvas.tokens
    assert ((ended != 0) & (ended != MASK)).all()


def test_rows_that_are_read_alike_are_one_pass_with_one_memory():
    network = random_network(before=True)
    one, canvas = process(network), of_rows([[1, *[MASK] * 9]] * 3, mask=MASK)
    state = one.begin(canvas, seed=4)
    while (asked := one.ask(state)) is not None:
        assert [len(p.x) for p in asked.passes] == [3]
        state, _ = one.commit(state, asked, answer(network, asked))
    for row in range(3):
        alone = last(run(one, network, canvas.take(torch.tensor([row])), seed=4, ids=torch.tensor([row])))
        assert torch.equal(alone.canvas.tokens[0], state.work.canvas.tokens[row])
