"""Every process keeps what is given, ends, and is a pure function of its state."""

import pytest
import torch

from contracts.members import LETTERS, model_of
from unmask.sampling.policies.remask import Remask
from unmask.sampling.policy import POLICIES
from unmask.sampling.process import answer, run
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import of_tokens

MASK = LETTERS.mask


@pytest.fixture(params=["mdlm", "block", "any-order", "one-stream", "ar", "d3pm-uniform", "plaid", "ssd-lm"])
def made(request, tmp_path):
    """A process, and the network that it asks."""
    model = model_of(tmp_path / "m", request.param)
    steps = 5 if POLICIES[model.objective.facts.sampler].budget else None
    return method_for(model, Recipe(steps=steps)).process, model.network


def canvas(rows: int = 3):
    tokens = torch.tensor([[1, 2, *[MASK] * 7]]).repeat(rows, 1)
    return of_tokens(tokens, mask=MASK)


def test_asking_and_committing_twice_gives_the_same(made):
    process, network = made
    state = process.begin(canvas(), seed=4)
    while not process.done(state):
        first, second = process.ask(state), process.ask(state)
        assert torch.equal(first.tokens, second.tokens)
        assert torch.equal(first.rows, second.rows)
        reply = answer(network, first)
        (one, a), (other, b) = (process.commit(state, first, reply) for _ in range(2))
        assert torch.equal(process.canvas(one).tokens, process.canvas(other).tokens)
        assert torch.equal(a.tokens, b.tokens)
        state = one
    assert process.ask(state) is None


def test_what_is_given_stays_and_no_mask_is_left(made):
    process, network = made
    *_, last = run(process, network, canvas(), seed=1)
    assert (last.canvas.tokens[:, :2] == torch.tensor([1, 2])).all()
    assert (last.canvas.tokens != MASK).all()
    assert isinstance(process.law, str)


def test_a_row_does_not_depend_on_its_neighbours(made):
    process, network = made
    *_, together = run(process, network, canvas(4), seed=9)
    for i in range(4):
        *_, alone = run(process, network, canvas(1), seed=9, ids=torch.tensor([i]))
        assert torch.equal(alone.canvas.tokens[0], together.canvas.tokens[i])


def test_a_canvas_without_blanks_takes_no_call(made):
    process, network = made
    full = of_tokens(torch.tensor([[1, 2, 3]]), mask=MASK)
    assert process.done(process.begin(full))
    assert list(run(process, network, full)) == []


def test_rejection_around_any_process_gives_rows_that_match(tmp_path):
    for objective in ("mdlm", "ar", "block"):
        model = model_of(tmp_path / objective, objective)
        method = method_for(model, Recipe().changed(pattern="[a-h .,\n]*", reject=200))
        start = [model.tokenizer.bos] if model.objective.facts.causal else [1]
        tokens = torch.tensor([[*start, *[MASK] * 6]]).repeat(3, 1)
        *_, last = method.fill(of_tokens(tokens, mask=MASK), seed=0, ids=torch.arange(3))
        assert method.constraint.matches(last.canvas).all()
        assert not method.process.settled


def test_a_policy_that_revises_makes_a_process_that_is_not_settled(tmp_path):
    model = model_of(tmp_path / "m", "mdlm")
    assert method_for(model, Recipe()).process.settled
    assert not method_for(model, Recipe(sampler="remask-cap")).process.settled
    assert Remask.revises
