"""Sudoku: puzzles solved from left to right and in the order of confidence, freely and under a constraint."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from studies.grids import Puzzle, candidates, solved
from studies.pupils import CLUES, Data, Sudoku, data, in_place, read_off, spelled, taught
from studies.results import Cell, Share, Table, mean
from studies.stories import say
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.model.passes.whole import logits_at
from unmask.sampling.logits import LogitOptions as Draw
from unmask.sampling.masked import fill
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.patterns.tokens import anything
from unmask.sampling.policies.left_to_right import LeftToRight
from unmask.sampling.policy import Policy, policy_of
from unmask.text.prompt.canvas import of_tokens

METHODS = {  # name: (objective, sampler, temperature)
    "ar, greedy": ("ar", "left to right", 0.0),
    "ar, sampled": ("ar", "left to right", 1.0),
    "mdlm, first-hitting, sampled": ("mdlm", "first-hitting", 1.0),
    "mdlm, first-hitting, greedy": ("mdlm", "first-hitting", 0.0),
    "mdlm, confidence, greedy": ("mdlm", "confidence", 0.0),
    "mdlm, margin, greedy": ("mdlm", "margin", 0.0),
}


def allowed(asked: Sudoku, puzzle: Puzzle, row: Int[Tensor, " l"]) -> Constraint:
    """Each cell may hold the digits that the givens of its row, column and box leave."""
    free = candidates(puzzle.given)
    places = range(1, len(row), 2)
    digits = {at: [digit - 1 for digit in free[int(row[at - 1]) - asked.side]] for at in places}
    return Constraint(anything(asked.mask + 1, mask=asked.mask), allowed=digits)


def answers(
    asked: Sudoku, model: Model, puzzles: list[Puzzle], sampler: str, temperature: float, *, constrained: bool
) -> Iterator[tuple[Puzzle, list[int], int]]:
    """Each puzzle, the grid that the model made of it, and the network calls. A constraint is one puzzle's own."""
    network, policy = model.network, policy_named(sampler)
    size = 1 if constrained else 50
    for first in range(0, len(puzzles), size):
        some = puzzles[first : first + size]
        given = np.array([puzzle.given for puzzle in some])
        canvas = of_tokens(spelled(asked, given, given, objective=model.objective.name), mask=asked.mask)
        limit = allowed(asked, some[0], canvas.tokens[0]) if constrained else None
        options = Draw(temperature=temperature, constraint=limit)
        if limit is not None:
            limit.check(canvas)
        ask = in_place(asked, partial(logits_at, network), model.objective.name)
        ids = torch.arange(first, first + len(some))
        *_, last = fill(ask, canvas, policy, seed=asked.seed, ids=ids, options=options)
        blanks = canvas.hidden.sum(1).tolist()
        yield from zip(some, read_off(asked, last.canvas.tokens), blanks, strict=True)


def policy_named(sampler: str) -> Policy:
    return LeftToRight() if sampler == "left to right" else policy_of(sampler)


def study(asked: Sudoku, *, folder: str = "", keep: Path | None = None) -> Table:
    """Train both, solve the test puzzles in every way, and count."""
    if asked.box not in CLUES:
        raise UserError(f"a box has side 2 (4x4) or 3 (9x9), not {asked.box}.")
    puzzles = data(asked, folder)
    say(f"{len(puzzles.train)} puzzles to learn from, {len(puzzles.test)} for the test ({puzzles.source})")
    learned = {"mdlm": taught(asked, puzzles.train, "mdlm", keep), "ar": taught(asked, puzzles.train, "ar", keep)}
    rows: list[tuple[Cell, ...]] = []
    for name, (objective, sampler, temperature) in METHODS.items():
        for constrained in (False, True):
            began = perf_counter()
            some = puzzles.test[: asked.constrained] if constrained else puzzles.test
            way = answers(asked, learned[objective][0], some, sampler, temperature, constrained=constrained)
            rows.append((name, "on" if constrained else "off", *score(list(way)), f"{perf_counter() - began:.1f}"))
            say(" | ".join(map(str, rows[-1])))
    head = ("method", "constraint", "solved", "blank cells right, %", "calls a puzzle", "seconds")
    return Table(title(asked, puzzles), head, tuple(rows), NOTES, about(asked, puzzles, learned))


def score(found: Sequence[tuple[Puzzle, list[int], int]]) -> tuple[Cell, Cell, Cell]:
    """Solved puzzles; blank cells as in the listed solution; calls."""
    good = sum(solved(grid, puzzle.given) for puzzle, grid, _ in found)
    right = [100 * share_right(grid, puzzle) for puzzle, grid, _ in found]
    calls = np.mean([calls for _, _, calls in found])
    return Share(good, len(found)), mean(right, digits=1), f"{calls:.1f}"


def share_right(grid: Sequence[int], puzzle: Puzzle) -> float:
    """Of the blank cells, the share with the digit of the listed solution."""
    blank = [i for i, clue in enumerate(puzzle.given) if not clue]
    return sum(grid[i] == puzzle.solution[i] for i in blank) / max(1, len(blank))


NOTES = (
    "Solved: the grid keeps the givens and obeys every rule; 95 % by Wilson. Cells are compared with the listed "
    "solution, though some 4x4 puzzles have several.",
    "Constraint on: a blank may only hold digits that no given of its row, column or box holds. It does not look at "
    "the digits drawn before: the rules of Sudoku are no regular language of useful size.",
)


def title(asked: Sudoku, puzzles: Data) -> str:
    return (
        f"Sudoku {asked.side}x{asked.side}: {len(puzzles.test)} puzzles; {asked.width} x {asked.blocks} networks, "
        f"{asked.steps} steps of {asked.batch} grids"
    )


def about(asked: Sudoku, puzzles: Data, learned: dict[str, tuple[Model, float]]) -> dict[str, Any]:
    return {
        "study": vars(asked),
        "test": puzzles.source,
        "solutions of the test among the lessons": len(
            {p.solution for p in puzzles.test} & {p.solution for p in puzzles.train}
        ),
        "parameters": {name: model.num_parameters for name, (model, _) in learned.items()},
        "cpu seconds of training": {name: round(spent, 1) for name, (_, spent) in learned.items()},
    }
