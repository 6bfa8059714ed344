"""Sudoku: an autoregressive and a masked diffusion network of one shape, taught the same grids for as many steps.

A grid is spelled as pairs, a token that names the cell and its digit, for the network knows distances and not places.
Diffusion reads the cells row by row. It is taught whole grids with random tokens hidden; at the test the blanks are
masked and all else is frozen. The autoregressive network reads the given cells first and the blanks behind them, each
part row by row; it is taught puzzles (with one solution) so spelled, from every token; at the test the names of the
blanks are given to it. So rows are equally long, and both see as many grids.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from studies.grids import Grid, Puzzle, candidates, disguised, make, random_puzzle, read_puzzles, solutions, solved
from studies.results import Cell, Share, Table, mean
from unmask.errors import UserError
from unmask.model.checkpoint import Model, load, save
from unmask.model.transformer import Transformer
from unmask.sampling.automaton import anything
from unmask.sampling.autoregressive import LeftToRight, Reader
from unmask.sampling.constraint import Constraint
from unmask.sampling.loop import fill
from unmask.sampling.policy import Policy
from unmask.sampling.samplers import named
from unmask.sampling.shape import Shape as Draw
from unmask.text.canvas import Canvas, of_tokens
from unmask.text.packing import Batch
from unmask.training import ema
from unmask.training.loop import begin, train
from unmask.training.phases import architecture, phases
from unmask.training.settings import Objective, Optim, Shape, Text, Train

CLUES = {2: (8,), 3: (32, 33, 33, 33, 34, 34, 34, 34, 34, 35, 35)}  # about those of the usual test files
FILES = {2: "4x4_test_sudoku.csv", 3: "sudoku_test.csv.gz"}
METHODS = {  # name: (objective, sampler, temperature)
    "ar, greedy": ("ar", "left to right", 0.0),
    "ar, sampled": ("ar", "left to right", 1.0),
    "mdlm, first-hitting, sampled": ("mdlm", "first-hitting", 1.0),
    "mdlm, first-hitting, greedy": ("mdlm", "first-hitting", 0.0),
    "mdlm, confidence, greedy": ("mdlm", "confidence", 0.0),
    "mdlm, margin, greedy": ("mdlm", "margin", 0.0),
}


@dataclass(frozen=True)
class Sudoku:
    """Settings of the study."""

    box: int = 2  # side of a box: 2 for 4x4, 3 for 9x9
    steps: int = 3000  # updates of each network
    batch: int = 32  # grids in a step
    width: int = 64
    blocks: int = 3
    lr: float = 1e-3
    bases: int = 500  # puzzles made for training with 9x9; every step disguises some of them anew
    held_out: int = 96  # of the 288 4x4 grids, those that are kept for the test; 9x9 grids never come twice
    test: int = 500  # puzzles at the test, at most
    constrained: int = 500  # of these, those that are also solved with the constraint, which takes one at a time
    seed: int = 1

    @property
    def cells(self) -> int:
        return self.box**4

    @property
    def bos(self) -> int:
        """Ids: digits less one, cells, bos, mask."""
        return self.box**2 + self.cells

    @property
    def mask(self) -> int:
        return self.bos + 1


@dataclass(frozen=True)
class Data:
    """Puzzles to learn from and others to be tested on."""

    train: list[Puzzle]
    test: list[Puzzle]
    source: str


def data(asked: Sudoku, folder: str) -> Data:
    """4x4: the grids are divided; 9x9: puzzles are made, and the test is the folder's or made too."""
    source = np.random.default_rng((asked.seed, asked.box))
    clues = CLUES[asked.box]
    path = Path(folder) / FILES[asked.box]
    tests = read_puzzles(path) if folder else None
    if asked.box == 3:
        made = [random_puzzle(3, int(source.choice(clues)), source) for _ in range(asked.bases)]
        tests = tests or [random_puzzle(3, int(source.choice(clues)), source) for _ in range(asked.test)]
        return Data(made, tests[: asked.test], str(path) if folder else "generated")
    grids = sorted(solutions((0,) * 16))
    known = sorted({puzzle.solution for puzzle in tests}) if tests else grids
    if not 1 <= asked.held_out <= min(len(known), len(grids) - 1):
        raise UserError(f"of {len(known)} solutions 1 to {min(len(known), 287)} can be held out, not {asked.held_out}.")
    kept = {known[i] for i in source.permutation(len(known))[: asked.held_out]}
    test = [puzzle for puzzle in tests or _for(sorted(kept), asked.test, clues, source) if puzzle.solution in kept]
    train = _for([grid for grid in grids if grid not in kept], 4000, clues, source)
    return Data(train, test[: asked.test], str(path) if folder else "generated")


def _for(grids: Sequence[Grid], count: int, clues: Sequence[int], source: np.random.Generator) -> list[Puzzle]:
    """Puzzles whose solutions are among these."""
    chosen = (grids[i] for i in source.integers(len(grids), size=count))
    return [make(grid, int(source.choice(clues)), source) for grid in chosen]


def spelled(asked: Sudoku, given: np.ndarray, shown: np.ndarray, *, objective: str) -> Int[Tensor, "b l"]:
    """Grids (b, cells) as rows of ids: bos, then name and digit of each cell, masks for the blanks of `shown`."""
    order = np.broadcast_to(np.arange(asked.cells), given.shape)
    if objective == "ar":
        order = np.argsort(given == 0, axis=1, kind="stable")
    digits = np.take_along_axis(shown, order, 1)
    pairs = np.stack([order + asked.box**2, np.where(digits > 0, digits - 1, asked.mask)], 2).reshape(len(given), -1)
    return torch.from_numpy(np.concatenate([np.full((len(pairs), 1), asked.bos), pairs], 1).astype(np.int64))


def read_off(asked: Sudoku, tokens: Int[Tensor, "b l"]) -> list[list[int]]:
    """The grids that rows spell; a token in the place of a digit that is none counts as 0."""
    cell, digit = tokens[:, 1::2] - asked.box**2, tokens[:, 2::2] + 1
    digit = torch.where(digit <= asked.box**2, digit, 0)
    return torch.zeros_like(digit).scatter(1, cell, digit).tolist()


def lessons(asked: Sudoku, puzzles: list[Puzzle], objective: str) -> Callable[[int], Batch]:
    """The rows of a step. 9x9 puzzles are disguised anew; 4x4 ones are not, or held-out grids would appear."""
    known = np.array([(puzzle.given, puzzle.solution) for puzzle in puzzles])

    def rows(step: int) -> Batch:
        source = np.random.default_rng((asked.seed, step))
        some = known[source.integers(len(known), size=asked.batch)]
        if asked.box == 3:
            some = disguised(some, source)
        tokens = spelled(asked, some[:, 0], some[:, 1], objective=objective)
        return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool))

    return rows


def taught(asked: Sudoku, puzzles: list[Puzzle], objective: str, folder: Path | None) -> tuple[Model, float]:
    """A network after its lessons, and the seconds of CPU they took (those of a folder: 0)."""
    place = None if folder is None else folder / f"sudoku{asked.box**2}_{objective}"
    if place is not None and place.is_dir():
        return load(place), 0.0
    settings = Train(
        steps=asked.steps,
        seed=asked.seed,
        text=Text(length=2 * asked.cells + 1),
        model=Shape(width=asked.width, blocks=asked.blocks),
        objective=Objective(name="ar" if objective == "ar" else "mdlm"),
        optim=Optim(batch=asked.batch, lr=asked.lr, ema=0.99),
    )
    (phase,) = phases(settings)
    torch.manual_seed(asked.seed)
    network = Transformer(architecture(settings, phase, vocab=asked.mask + 1))
    state, began = begin(network, settings), process_time()
    for progress in train(state, phase, settings, lessons(asked, puzzles, objective), mask=asked.mask):
        if progress.step % 100 == 0:
            spent = process_time() - began
            say(f"{objective} step {progress.step}: {progress.bound:.3f} nats a token, {spent:.0f} s of CPU")
    ema.exchange(state.shadow, list(network.parameters()))
    if place is not None:
        save(place, network, mask=asked.mask, objective=objective, step=asked.steps, ema=True)
    return Model(network.freeze(), asked.mask, objective, step=asked.steps, ema=True), process_time() - began


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def allowed(asked: Sudoku, puzzle: Puzzle, row: Int[Tensor, " l"]) -> Constraint:
    """Each cell may hold the digits that the givens of its row, column and box leave."""
    free = candidates(puzzle.given)
    places = range(2, len(row), 2)
    digits = {at: [digit - 1 for digit in free[int(row[at - 1]) - asked.box**2]] for at in places}
    return Constraint(anything(asked.mask + 1, mask=asked.mask), allowed=digits)


def answers(
    asked: Sudoku, model: Model, puzzles: list[Puzzle], sampler: str, temperature: float, *, constrained: bool
) -> Iterator[tuple[Puzzle, list[int], int]]:
    """Each puzzle, the grid that the model made of it, and the network calls. A constraint is one puzzle's own."""
    network, policy = model.network, policy_of(sampler)
    size = 1 if constrained else 50
    for first in range(0, len(puzzles), size):
        some = puzzles[first : first + size]
        given = np.array([puzzle.given for puzzle in some])
        canvas: Canvas = of_tokens(spelled(asked, given, given, objective=model.objective), mask=asked.mask)
        limit = allowed(asked, some[0], canvas.tokens[0]) if constrained else None
        # What is no digit is never a cell's, with the constraint or without.
        others = () if constrained else tuple(range(asked.box**2, asked.mask))
        shape = Draw(temperature=temperature, banned=others, constraint=limit)
        if limit is not None:
            limit.check(canvas)
        ask = Reader(network) if model.objective == "ar" else network.logits
        ids = torch.arange(first, first + len(some))
        *_, last = fill(ask, canvas, policy, seed=asked.seed, ids=ids, shape=shape)
        blanks = canvas.hidden.sum(1).tolist()
        for puzzle, grid, calls in zip(some, read_off(asked, last.canvas.tokens), blanks, strict=True):
            yield puzzle, grid, calls


def policy_of(sampler: str) -> Policy:
    return LeftToRight() if sampler == "left to right" else named(sampler)


def study(asked: Sudoku, *, folder: str = "", keep: Path | None = None) -> Table:
    """Train both, solve the test puzzles in every way, and count."""
    if asked.box not in CLUES:
        raise UserError(f"a box has side 2 (4x4) or 3 (9x9), not {asked.box}.")
    puzzles = data(asked, folder)
    say(f"{len(puzzles.train)} puzzles to learn from, {len(puzzles.test)} for the test ({puzzles.source})")
    learned = {objective: taught(asked, puzzles.train, objective, keep) for objective in ("ar", "mdlm")}
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
    right = [
        100 * np.mean([a == b for a, b, clue in zip(grid, puzzle.solution, puzzle.given, strict=True) if not clue])
        for puzzle, grid, _ in found
    ]
    calls = np.mean([calls for _, _, calls in found])
    return Share(good, len(found)), mean(right, digits=1), f"{calls:.1f}"


NOTES = (
    "Solved: the grid keeps the givens and obeys every rule; 95 % by Wilson. A puzzle may have several solutions, cells "
    "are compared with the listed one.",
    "Constraint on: a blank may only hold digits that no given of its row, column or box holds. It says nothing about "
    "the digits drawn before: the rules of Sudoku are no regular language of useful size.",
)


def title(asked: Sudoku, puzzles: Data) -> str:
    side = asked.box**2
    return (
        f"Sudoku {side}x{side}: {len(puzzles.test)} puzzles; {asked.width} x {asked.blocks} networks, "
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
