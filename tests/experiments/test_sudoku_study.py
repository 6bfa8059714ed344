"""The Sudoku study: what networks are taught and asked."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from studies.grids import candidates, solutions
from studies.pupils import Sudoku, data, fresh, in_place, learn, lessons, read_off, spelled, with_other_blanks
from studies.sudoku import METHODS, answers
from unmask.diffusion.objective import objective_of
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.model.passes.whole import logits_at

pytestmark = pytest.mark.slow

ASKED = Sudoku(test=3, constrained=3, batch=4, bases=300)


def puzzles():
    return data(ASKED, "")


@pytest.mark.parametrize("objective", ["ar", "mdlm"])
def test_what_is_spelled_can_be_read_off_again(objective):
    some = np.array([(one.given, one.solution) for one in puzzles().test])
    rows = spelled(ASKED, some[:, 0], some[:, 1], objective=objective)
    assert rows.shape == (3, 32)
    assert read_off(ASKED, rows) == some[:, 1].tolist()


def test_only_blanks_are_masked_and_left_to_right_they_come_last():
    given = np.array([puzzles().test[0].given])
    for objective, order in (("mdlm", given[0] == 0), ("ar", np.sort(given[0] == 0))):
        row = spelled(ASKED, given, given, objective=objective)[0]
        assert ((row[1::2] == ASKED.mask).numpy() == order).all()
        assert not (row[::2] == ASKED.mask).any()


def test_no_grid_of_the_test_is_taught():
    found = puzzles()
    tested, taught = {one.solution for one in found.test}, {one.solution for one in found.train}
    assert not tested & taught
    assert taught <= set(solutions((0,) * 16)) - tested
    rows = lessons(ASKED, found.train, "mdlm")
    drawn = {tuple(grid) for step in range(20) for grid in read_off(ASKED, rows(step).tokens)}
    assert drawn <= taught
    assert len(drawn) > 30


def test_lessons_of_four_blank_other_cells_of_the_same_grids():
    known = np.array([(one.given, one.solution) for one in puzzles().train[:50]])
    found = with_other_blanks(known, np.random.default_rng(0))
    assert (found[:, 1] == known[:, 1]).all()
    assert ((found[:, 0] > 0).sum(1) == 8).all()
    assert (found[:, 0] == known[:, 1])[found[:, 0] > 0].all()
    assert len({tuple(row > 0) for row in found[:, 0]}) > 45
    assert (found[:, 0] != known[:, 0]).any(1).all()


def test_lessons_depend_on_the_step_alone():
    rows = lessons(ASKED, puzzles().train, "ar")
    assert torch.equal(rows(3).tokens, rows(3).tokens)
    assert not torch.equal(rows(3).tokens, rows(4).tokens)


@pytest.mark.parametrize(("objective", "sampler", "temperature"), list(METHODS.values())[1::3])
def test_with_the_constraint_every_blank_holds_what_the_givens_leave(objective, sampler, temperature):
    network = fresh(replace(ASKED, width=16, blocks=1), objective)
    torch.nn.init.normal_(network.output_layer.linear.weight)
    model = Model(network.freeze(), ASKED.mask, objective_of(objective))
    outside = 0
    for constrained in (True, False):
        for puzzle, grid, calls in answers(
            ASKED, model, puzzles().test, sampler, temperature, constrained=constrained
        ):
            assert calls == 8
            assert all(clue in (0, digit) for clue, digit in zip(puzzle.given, grid, strict=True))
            held = [digit in some for digit, some in zip(grid, candidates(puzzle.given), strict=True)]
            assert all(held) or not constrained
            outside += not all(held)
    assert outside  # a network that knows nothing needs the constraint


def seen_by(objective, rows):
    """What the network is shown and asked for by someone who reads pairs, and the answer that comes back."""
    shown = []

    def network(tokens, sigma, asked):
        shown.extend((tokens, asked))
        return torch.arange(80.0).expand(len(asked), -1)

    hidden = (rows == ASKED.mask).flatten().nonzero()[:, 0]
    answer = in_place(ASKED, network, objective)(rows, torch.zeros(len(rows)), hidden)
    return *shown, answer


@pytest.mark.parametrize("objective", ["ar", "mdlm"])
def test_every_token_that_a_network_sees_tells_its_cell_and_what_it_holds(objective):
    given = np.array([one.given for one in puzzles().test])
    rows = spelled(ASKED, given, given, objective=objective)
    tokens, _, _ = seen_by(objective, rows)
    held = tokens[:, 1::2] if objective == "ar" else tokens
    for row, grid in zip(held.tolist(), given.tolist(), strict=True):
        told = {token // 5: (token % 5 + 1) % 5 for token in row}
        assert told == dict(enumerate(grid))
    if objective == "ar":
        assert torch.equal(tokens[:, ::2] // 5, tokens[:, 1::2] // 5)
        assert (tokens[:, ::2] % 5 == 4).all()


def test_diffusion_answers_at_the_blank_and_only_with_digits():
    given = np.array([one.given for one in puzzles().test])
    tokens, asked, answer = seen_by("mdlm", spelled(ASKED, given, given, objective="mdlm"))
    assert torch.equal(asked, (tokens % 5 == 4).flatten().nonzero()[:, 0])
    assert answer.shape == (len(asked), ASKED.mask + 1)
    assert torch.equal(answer[0, :4], torch.arange(4.0))
    assert (answer[:, 4:] == -math.inf).all()


def test_the_autoregressive_answer_does_not_know_its_digit_or_those_behind():
    network = fresh(ASKED, "ar")
    torch.nn.init.normal_(network.output_layer.linear.weight)
    ask = in_place(ASKED, partial(logits_at, network), "ar")
    whole = lessons(ASKED, puzzles().train, "ar")(0).tokens
    at = torch.tensor([21])  # the digit of the third blank of the first row
    before = ask(whole, torch.zeros(4), at)
    later, earlier = whole.clone(), whole.clone()
    later[0, 21::2], earlier[0, 19] = ASKED.mask, (whole[0, 19] + 1) % 4
    torch.testing.assert_close(ask(later, torch.zeros(4), at), before)
    assert (ask(earlier, torch.zeros(4), at) - before)[0, :4].abs().max() > 1e-3


def test_what_is_given_is_seen_in_lessons_and_never_asked_for():
    tokens, given = lessons(ASKED, puzzles().train, "mdlm")(0)
    assert not (tokens == ASKED.mask).any()
    assert given[:, ::2].all()
    assert (given[:, 1::2].sum(1) == 8).all()


def test_embeddings_begin_as_sums_of_row_column_box_and_digit():
    table = fresh(ASKED, "mdlm").vocab_embed.embedding.detach().view(16, 5, -1)

    def step(cell, other):
        return table[other, 0] - table[cell, 0]

    torch.testing.assert_close(table[0, 1] - table[0, 0], table[9, 1] - table[9, 0])
    torch.testing.assert_close(step(0, 1), step(4, 5))  # to the next column, row and box the same
    torch.testing.assert_close(step(0, 4), step(1, 5))  # to the next row, column and box the same
    apart = (table[0, 1] - table[0, 0], step(0, 1), step(0, 4), step(0, 2) - step(8, 10))  # the last: boxes alone
    assert min(float(one.abs().max()) for one in apart) > 0.01


@pytest.mark.parametrize("objective", ["ar", "mdlm"])
def test_a_network_learns_more_than_that_there_are_four_digits(objective):
    asked = replace(ASKED, steps=150, batch=16, width=32, blocks=2, lr=3e-3)
    paid = list(learn(asked, fresh(asked, objective), lessons(asked, puzzles().train, objective), objective))
    assert abs(np.mean(paid[:3]) - math.log(4)) < 0.1
    assert np.mean(paid[-20:]) < 0.8 * math.log(4)


def test_holding_out_more_than_there_is_is_refused():
    with pytest.raises(UserError, match="held out, not 288"):
        data(Sudoku(held_out=288), "")
