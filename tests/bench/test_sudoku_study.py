"""The Sudoku study: what networks are taught and asked."""

import numpy as np
import pytest
import torch

from studies.grids import candidates, solutions
from studies.pupils import Sudoku, data, lessons, read_off, spelled, with_other_blanks
from studies.sudoku import METHODS, answers
from unmask.errors import UserError
from unmask.model.checkpoint import Model
from unmask.model.transformer import Architecture, Transformer

pytestmark = pytest.mark.slow

ASKED = Sudoku(test=3, constrained=3, batch=4, bases=300)


def puzzles():
    return data(ASKED, "")


@pytest.mark.parametrize("objective", ["ar", "mdlm"])
def test_what_is_spelled_can_be_read_off_again(objective):
    some = np.array([(one.given, one.solution) for one in puzzles().test])
    rows = spelled(ASKED, some[:, 0], some[:, 1], objective=objective)
    assert rows.shape == (3, 33)
    assert read_off(ASKED, rows) == some[:, 1].tolist()


def test_only_blanks_are_masked_and_left_to_right_they_come_last():
    given = np.array([puzzles().test[0].given])
    for objective, order in (("mdlm", given[0] == 0), ("ar", np.sort(given[0] == 0))):
        row = spelled(ASKED, given, given, objective=objective)[0]
        assert row[0] == ASKED.bos
        assert ((row[2::2] == ASKED.mask).numpy() == order).all()
        assert not (row[1::2] == ASKED.mask).any()


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
    ar = objective == "ar"
    torch.manual_seed(0)
    network = Transformer(Architecture(ASKED.mask + 1, length=33, width=16, blocks=1, causal=ar, reads_before=ar))
    torch.nn.init.normal_(network.output_layer.linear.weight)
    model = Model(network.freeze(), ASKED.mask, objective)
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


def test_holding_out_more_than_there_is_is_refused():
    with pytest.raises(UserError, match="held out, not 288"):
        data(Sudoku(held_out=288), "")
