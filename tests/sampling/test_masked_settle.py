"""Tokens without an alternative take no network call; the law, enumerated, stays what it was."""

import re
from collections import Counter

import pytest
import torch

import exact
from sampling.laws import law_of
from sampling.patterns.test_constraint import ABC, allowed_tokens, restricted
from unmask.errors import UserError
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import BlockWindows, Sliding, fill
from unmask.sampling.patterns.constraint import Constraint, matching, one_of
from unmask.sampling.patterns.tokens import Words, anything, words_of
from unmask.sampling.policies.confidence import Leftmost, Ordered
from unmask.sampling.policies.planned import Ancestral, FirstHitting, Groups
from unmask.sampling.policies.remask import Remask
from unmask.sampling.tasks.continuation import Continue, sample
from unmask.sampling.tasks.rows import drop_unneeded_blanks
from unmask.text.prompt.canvas import blank, of_tokens

ENOUGH = 1e-4
PATTERN = "a(bb|cc)|[bc]a[ab]"  # after most first draws the rest is certain
WORDS = (b"yes", b"no", b"maybe", b".", b"", b"")
ANSWERS = Words(WORDS, WORDS, end=4, silent=frozenset([4, 5]))
POLICIES = [FirstHitting(), Ancestral(4), Ordered("entropy"), Leftmost(), Groups(calls=3), Remask("rescale", 6)]


def counted(network):
    """A network that counts its calls, and the tokens that it is asked for."""

    def asked(x_t, sigma, rows):
        asked.calls += 1
        asked.tokens += len(rows)
        return network(x_t, sigma, rows)

    asked.calls = asked.tokens = 0
    return asked


def in_order(world, pattern, first):
    """One position a call, chosen by `first` from the restricted distributions."""

    def move(state, call):
        found = allowed_tokens(world, pattern, state)
        probs = {}
        for i, letters in found.items():
            p = exact.log_p_hidden(world, torch.tensor(state), i).exp()
            total = sum(float(p[letter]) for letter in letters)
            probs[i] = {letter: float(p[letter]) / total for letter in letters}
        i = first(probs)
        for letter, p in probs[i].items():
            yield (*state[:i], letter, *state[i + 1 :]), p

    return move


def surest(probs):
    """The position with the likeliest token; of several, the leftmost."""
    best = max(max(p.values()) for p in probs.values())
    return min(i for i, p in probs.items() if max(p.values()) > best - 1e-9)


@pytest.mark.parametrize(
    "policy, move",
    [
        (FirstHitting(), restricted),
        (Leftmost(), lambda world, pattern: in_order(world, pattern, min)),
        (Ordered("confidence"), lambda world, pattern: in_order(world, pattern, surest)),
    ],
    ids=["first-hitting", "left-to-right", "confidence"],
)
def test_samplers_of_one_token_a_call_have_the_law_that_asks_for_every_token(policy, move):
    world = exact.TableWorld.random(11)
    network = counted(world.network)
    draws = 20_000
    *_, step = fill(network, blank(draws, 3, mask=3), policy, options=LogitOptions(constraint=matching(PATTERN, ABC)))
    assert exact.chi_square_p(law_of(world, move(world, PATTERN)), step.canvas.tokens) > ENOUGH
    assert network.tokens < 3 * draws * (2 if policy.surest_first else 1) * 0.8  # surest first asks for all of them


def test_a_token_that_is_certain_from_the_start_waits_for_its_turn():
    """In random order the network sees the first `a` in half of its calls, as if it were asked for it too."""
    world = exact.TableWorld.random(12)
    seen = []

    def network(x_t, sigma, rows):
        seen.extend(x_t[:, 0].tolist())
        return world.network(x_t, sigma, rows)

    list(fill(network, blank(2000, 3, mask=3), FirstHitting(), options=LogitOptions(constraint=matching("a..", ABC))))
    shares = Counter(seen)
    assert shares[0] + shares[3] == 4000
    assert abs(shares[0] - 2000) < 200


def test_what_is_certain_in_a_group_comes_with_its_group():
    """The network sees a row without the first `a`: the other two of the group are drawn given masks only."""
    world = exact.TableWorld.random(13)
    probs = [exact.log_p_hidden(world, torch.tensor((3, 3, 3)), i).exp().tolist() for i in range(3)]
    law = {(0, b, c): probs[1][b] / (1 - probs[1][0]) * probs[2][c] for b in (1, 2) for c in (0, 1, 2)}
    network, options = counted(world.network), LogitOptions(constraint=matching("a[bc].", ABC))
    *_, step = fill(network, blank(20_000, 3, mask=3), Groups(sizes=(3,)), options=options)
    assert exact.chi_square_p(law, step.canvas.tokens) > ENOUGH
    assert network.calls == 1


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_a_choice_between_words_takes_one_call_whatever_the_sampler_and_the_space(policy):
    network = counted(lambda x_t, sigma, rows: torch.zeros(len(rows), 6))
    options = LogitOptions(constraint=one_of(["yes", "no", "maybe"], ANSWERS))
    tokens = None
    for step in fill(network, blank(64, 40, mask=5), policy, options=options):
        tokens = step.canvas.tokens
    assert set(tokens[:, 0].tolist()) == {0, 1, 2}
    assert (tokens[:, 1:] == 4).all()
    assert network.calls <= (6 if policy.revises else 1)


@pytest.mark.parametrize("windows", [None, Sliding(4, 2), BlockWindows(3)])
def test_what_is_certain_altogether_takes_no_call_and_is_the_step_before_the_first(windows):
    network = counted(lambda x_t, sigma, rows: torch.zeros(len(rows), 6))
    options = LogitOptions(constraint=matching(r"yesno\.", ANSWERS))
    steps = list(fill(network, blank(2, 9, mask=5), options=options, windows=windows))
    assert network.calls == 0
    assert [step.call for step in steps] == [0]
    assert steps[0].canvas.tokens.tolist() == [[0, 1, 3, 4, 4, 4, 4, 4, 4]] * 2
    assert len(steps[0].rows) == 18
    assert steps[0].log_probs.tolist() == [0.0] * 18


def test_sets_of_one_allowed_token_take_no_call_either():
    network = counted(lambda x_t, sigma, rows: torch.zeros(len(rows), 6))
    free = Constraint(anything(6, mask=5), allowed={0: [2], 2: [0, 3], 3: [1]})
    *_, step = fill(network, blank(50, 4, mask=5), FirstHitting(), options=LogitOptions(constraint=free))
    assert {*step.canvas.tokens[:, 0].tolist()} == {2}
    assert {*step.canvas.tokens[:, 2].tolist()} == {0, 3}
    assert network.calls == 2
    both = Constraint(matching("(yes|no)(yes|no)", ANSWERS).automaton, allowed={0: [0, 3]})
    network.calls = 0
    *_, step = fill(network, blank(9, 2, mask=5), options=LogitOptions(constraint=both))
    assert network.calls <= 2
    assert {*step.canvas.tokens[:, 0].tolist()} == {0}


def test_free_tokens_cost_nothing_of_a_budget_of_calls():
    texts = ["yes." * 10, "no." * 10]
    network = counted(lambda x_t, sigma, rows: torch.zeros(len(rows), 6))
    *_, step = fill(
        network,
        blank(1, 30, mask=5),
        Ordered("entropy", calls=3),
        options=LogitOptions(constraint=one_of(texts, ANSWERS)),
    )
    assert network.calls == 1
    assert step.call == 1
    assert len(step.rows) == 10  # a third of ten words by the network, the others by the first of them


def test_a_canvas_is_as_long_as_the_longest_match_and_its_end(model):
    tokenizer = model.tokenizer
    for control, most in (({"one_of": ("abc", "de")}, 4), ({"pattern": "a{1,3}b?"}, 5), ({"pattern": "a*"}, None)):
        for given in ("", "fed "):
            for one in sample(model, n=4, prompt=given, **control):
                pattern = control.get("pattern", "abc|de")
                assert re.fullmatch(given + f"(?:{pattern})", one.text)
                before = len(tokenizer.encode(given))
                assert len(one.tokens) <= (model.spec.length if most is None else before + most)
    row = Continue("ab", 9).row(model, constrained=True)
    where = {"mask": model.mask, "device": model.device}
    limits = {"aa|b": 2 + 3, "a*": 9, "": 2 + 1}
    for pattern, length in limits.items():
        found = matching(pattern, words(model))
        assert len(drop_unneeded_blanks(row, found, **where).tokens) == length
    whole = matching("ab(c|dd)", words(model), whole=True)
    assert len(drop_unneeded_blanks(row, whole, **where).tokens) == 2 + 3
    exactly = matching("aa|b{7}", words(model), ends=False)
    assert len(drop_unneeded_blanks(row, exactly, **where).tokens) == 9
    with pytest.raises(UserError, match="no text of 9 tokens"):
        drop_unneeded_blanks(row, matching("aa", words(model), ends=False), **where)
    places = Constraint(matching("aa", words(model)).automaton, allowed={6: [tokenizer.eos]})
    assert len(drop_unneeded_blanks(row, places, **where).tokens) == 7
    suffixed = Continue("ab", 9, suffix="c").row(model, constrained=True)
    assert drop_unneeded_blanks(suffixed, matching("a", words(model)), **where) == suffixed


def words(model):
    return words_of(model.tokenizer)


def test_rejection_is_drawn_on_the_same_canvas(model):
    for one in sample(model, n=2, pattern="[a-h]{1,2}", reject=4000):
        assert len(one.tokens) <= 3
        assert re.fullmatch("[a-h]{1,2}", one.text)


def test_given_tokens_are_never_drawn_again():
    canvas = of_tokens(torch.tensor([[0, 5, 5, 4]]), mask=5)
    options = LogitOptions(constraint=matching("no|maybe", ANSWERS))
    *_, step = fill(lambda x, s, rows: torch.zeros(len(rows), 6), canvas, options=options)
    assert step.canvas.tokens[0, [0, 3]].tolist() == [0, 4]
    assert step.canvas.tokens[0, 2] == 4
