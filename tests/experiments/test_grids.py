"""Sudoku puzzles: made, checked, disguised, read."""

import gzip
import itertools

import numpy as np
import pytest

from studies.grids import (
    Puzzle,
    box_of,
    candidates,
    disguised,
    make,
    random_puzzle,
    read_puzzles,
    solutions,
    solved,
)
from unmask.errors import UserError

pytestmark = pytest.mark.slow

SMALL = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)
NOTHING = (0,) * 16


def changed(grid: tuple[int, ...], *cells: tuple[int, int]) -> tuple[int, ...]:
    new = dict(cells)
    return tuple(new.get(i, digit) for i, digit in enumerate(grid))


def test_there_are_288_grids_of_four_and_each_is_found_once():
    found = list(solutions(NOTHING))
    assert len(found) == len(set(found)) == 288
    assert all(solved(grid, NOTHING) for grid in found)


def test_a_grid_is_solved_only_if_rows_columns_and_boxes_hold_each_digit_and_the_givens_stay():
    rows_and_columns = (1, 2, 3, 4, 2, 3, 4, 1, 3, 4, 1, 2, 4, 1, 2, 3)  # boxes repeat digits
    rows_and_boxes = (1, 2, 3, 4, 3, 4, 1, 2) * 2  # columns do
    columns_and_boxes = tuple(np.array(rows_and_boxes).reshape(4, 4).T.flatten().tolist())  # rows do
    assert solved(SMALL, NOTHING)
    for wrong in (rows_and_columns, rows_and_boxes, columns_and_boxes, changed(SMALL, (0, 0))):
        assert not solved(wrong, NOTHING)
    assert not solved(SMALL, changed(NOTHING, (0, 2)))


@pytest.mark.parametrize(("box", "clues"), [(2, 6), (3, 34)])
def test_a_puzzle_has_as_many_clues_as_asked_for_and_one_solution(box, clues):
    puzzle = random_puzzle(box, clues, np.random.default_rng(0))
    assert puzzle.clues == clues
    assert list(itertools.islice(solutions(puzzle.given), 2)) == [puzzle.solution]


def test_clues_that_are_needed_stay():
    puzzle = make(SMALL, 0, np.random.default_rng(0))
    assert list(solutions(puzzle.given)) == [SMALL]
    for cell in (i for i, digit in enumerate(puzzle.given) if digit):
        assert len(list(solutions(changed(puzzle.given, (cell, 0))))) > 1


def test_a_disguised_puzzle_is_another_puzzle_with_one_solution():
    source = np.random.default_rng(0)
    puzzle = random_puzzle(3, 34, source)
    many = np.array([[puzzle.given, puzzle.solution]] * 20)
    found = [(tuple(given), tuple(solution)) for given, solution in disguised(many, source).tolist()]
    assert len(set(found)) == 20
    assert all(solved(solution, given) and sum(map(bool, given)) == 34 for given, solution in found)
    assert all(len(list(itertools.islice(solutions(given), 2))) == 1 for given, _ in found[:5])


def test_candidates_are_the_digits_that_no_given_of_row_column_or_box_holds():
    given = changed(NOTHING, (0, 1), (6, 2), (13, 3))
    for cell, digits in enumerate(candidates(given)):
        row, column = divmod(cell, 4)
        seen = {
            given[4 * r + c]
            for r in range(4)
            for c in range(4)
            if r == row or c == column or (r // 2 == row // 2 and c // 2 == column // 2)
        }
        assert digits == ([given[cell]] if given[cell] else [d for d in range(1, 5) if d not in seen])


def test_a_puzzle_without_solution_has_none():
    assert list(solutions(changed(NOTHING, (0, 1), (1, 1)))) == []


def test_puzzles_are_read_from_plain_and_compressed_files(tmp_path):
    line = "1000000000000000," + "".join(map(str, SMALL))
    (tmp_path / "a.csv").write_text(f"Puzzle,Solution\n{line}\n")
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write(f"Puzzle,Solution\n{line}\n")
    wanted = [Puzzle(changed(NOTHING, (0, 1)), SMALL)]
    assert read_puzzles(tmp_path / "a.csv") == read_puzzles(tmp_path / "a.csv.gz") == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Puzzle,Solution\n", "holds no puzzles"),
        ("Puzzle,Solution\n10000,x\n", "line 2 .* is not a puzzle"),
        (f"Puzzle,Solution\n2000000000000000,{''.join(map(str, SMALL))}\n", "line 2 .* changes what is given"),
        ("Puzzle,Solution\n000,111\n", "16 or 81 cells, not 3"),
    ],
)
def test_a_file_that_holds_no_puzzles_is_refused(tmp_path, text, said):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        read_puzzles(tmp_path / "a.csv")


def test_a_missing_file_and_an_odd_grid_are_refused(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        read_puzzles(tmp_path / "none.csv")
    with pytest.raises(UserError, match="16 or 81"):
        box_of([0] * 17)
