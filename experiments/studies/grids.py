"""Sudoku: puzzles made and checked. A grid is `side`² digits read row by row, 0 for a blank cell; side = box²."""

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from unmask.errors import UserError

Grid = tuple[int, ...]


@dataclass(frozen=True)
class Puzzle:
    """What is given, and its solution."""

    given: Grid
    solution: Grid

    @property
    def clues(self) -> int:
        return sum(digit > 0 for digit in self.given)


@cache
def peers(box: int) -> tuple[tuple[int, ...], ...]:
    """Of each cell, the other cells of its row, column and box."""
    side = box * box

    def units(cell: int) -> tuple[int, int, int]:
        row, column = divmod(cell, side)
        return row, column, row // box * box + column // box

    cells = range(side * side)
    return tuple(
        tuple(other for other in cells if other != cell and any(map(int.__eq__, units(cell), units(other))))
        for cell in cells
    )


def box_of(grid: Sequence[int]) -> int:
    """The side of a box, from the number of cells."""
    box = round(len(grid) ** 0.25)
    if len(grid) < 16 or box**4 != len(grid):
        raise UserError(f"a Sudoku has 16 or 81 cells, not {len(grid)}.")
    return box


def solved(grid: Sequence[int], given: Sequence[int]) -> bool:
    """Whether a grid keeps what is given and holds each digit once in every row, column and box."""
    side = box_of(grid) ** 2
    kept = all(clue in (0, digit) for clue, digit in zip(given, grid, strict=True))
    whole = all(1 <= digit <= side for digit in grid)
    return kept and whole and all(grid[i] != grid[j] for i, near in enumerate(peers(box_of(grid))) for j in near)


def candidates(given: Sequence[int]) -> list[list[int]]:
    """The digits each cell may hold as far as the givens of its row, column and box say; of a given cell, its own."""
    box = box_of(given)
    return [
        [own] if own else sorted(set(range(1, box * box + 1)) - {given[other] for other in peers(box)[cell]})
        for cell, own in enumerate(given)
    ]


def solutions(given: Sequence[int], *, source: np.random.Generator | None = None) -> Iterator[Grid]:
    """Every solution, by trying the cell with the fewest digits left; with a source, digits in random order."""
    near, grid = peers(box_of(given)), list(given)
    left = [set(digits) for digits in candidates(given)]
    if any(not digits for digits in left):
        return
    yield from _search(grid, left, [cell for cell, digit in enumerate(grid) if not digit], near, source)


def _search(
    grid: list[int],
    left: list[set[int]],
    blank: list[int],
    near: tuple[tuple[int, ...], ...],
    source: np.random.Generator | None,
) -> Iterator[Grid]:
    if not blank:
        yield tuple(grid)
        return
    cell = min(blank, key=lambda cell: len(left[cell]))
    digits = sorted(left[cell])
    if source is not None:
        digits = [digits[i] for i in source.permutation(len(digits))]
    rest = [other for other in blank if other != cell]
    for digit in digits:
        changed = [other for other in near[cell] if grid[other] == 0 and digit in left[other]]
        grid[cell] = digit
        for other in changed:
            left[other].discard(digit)
        if all(left[other] for other in changed):
            yield from _search(grid, left, rest, near, source)
        for other in changed:
            left[other].add(digit)
    grid[cell] = 0


def make(solution: Grid, clues: int, source: np.random.Generator) -> Puzzle:
    """A puzzle with this one solution: clues taken away in random order where no second solution appears.

    It may keep more clues than asked for, where every further one is needed.
    """
    given, box = list(solution), box_of(solution)
    for cell in source.permutation(len(given)).tolist():
        if sum(digit > 0 for digit in given) <= clues:
            break
        own, given[cell] = given[cell], 0
        # The puzzle had one solution before: a second one must hold another digit here.
        others = set(range(1, box * box + 1)) - {own} - {given[other] for other in peers(box)[cell]}
        for digit in others:
            given[cell] = digit
            if next(solutions(given), None) is not None:
                given[cell] = own
                break
        else:
            given[cell] = 0
    return Puzzle(tuple(given), solution)


def random_puzzle(box: int, clues: int, source: np.random.Generator) -> Puzzle:
    """A random grid (by search in random order: not quite uniform), and a puzzle of so many clues for it."""
    while True:
        found = make(next(solutions((0,) * box**4, source=source)), clues, source)
        if found.clues == clues:
            return found


def disguised(grids: np.ndarray, source: np.random.Generator) -> np.ndarray:
    """The same puzzles (b, kinds, cells) in other words: digits renamed, bands, stacks, their rows and columns
    permuted, transposed; each row of the array in its own way, the kinds of one row alike. Blanks stay blanks."""
    b, kinds, cells = grids.shape
    box = round(cells**0.25)
    side = box * box
    names = np.zeros((b, side + 1), np.int64)
    names[:, 1:] = source.permuted(np.tile(np.arange(1, side + 1), (b, 1)), axis=1)
    renamed = np.take_along_axis(names[:, None], grids, axis=2).reshape(b, kinds, side, side)
    turned = np.where(source.random((b, 1, 1, 1)) < 0.5, renamed, renamed.transpose(0, 1, 3, 2))
    rows, columns = _lines(b, box, source), _lines(b, box, source)
    moved = np.take_along_axis(turned, rows[:, None, :, None], axis=2)
    return np.take_along_axis(moved, columns[:, None, None, :], axis=3).reshape(b, kinds, cells)


def _lines(b: int, box: int, source: np.random.Generator) -> np.ndarray:
    """Orders (b, side) of the rows: bands permuted, and the rows within each."""
    bands = source.permuted(np.tile(np.arange(box), (b, 1)), axis=1)
    within = source.permuted(np.tile(np.arange(box), (b, box, 1)), axis=2)
    return (bands[:, :, None] * box + within).reshape(b, box * box)


def read_puzzles(path: str | Path) -> list[Puzzle]:
    """The puzzles of a .csv file, plain or .gz: a head line, then puzzle,solution with 0 for a blank."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = [row for row in csv.reader(file) if row][1:]
    if not rows:
        raise UserError(f"{path} holds no puzzles.")
    return [_puzzle(row, f"line {number} of {path}") for number, row in enumerate(rows, 2)]


def _puzzle(row: list[str], where: str) -> Puzzle:
    if len(row) != 2 or not all(text.isdecimal() for text in row) or len(row[0]) != len(row[1]):
        raise UserError(f"{where} is not a puzzle and its solution as digits, with a comma between: {row!r:.80}.")
    given, solution = (tuple(map(int, text)) for text in row)
    if not solved(solution, given):
        raise UserError(f"{where}: the solution breaks a rule of Sudoku or changes what is given.")
    return Puzzle(given, solution)
