"""Pupils: an autoregressive and a masked diffusion network of one shape, taught the same grids for as many steps.

A grid is spelled as pairs, a token that names the cell and its digit, for the network knows distances and not places.
Diffusion reads the cells row by row. It is taught whole grids with random tokens hidden; at the test the blanks are
masked and all else is frozen. The autoregressive network reads the given cells first and the blanks behind them, each
part row by row; it is taught puzzles so spelled, from every token, names included; at the test the names of the
blanks are given to it. So rows are equally long, and both see as many grids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from studies.grids import Grid, Puzzle, disguised, make, random_puzzle, read_puzzles, solutions
from studies.stories import say
from unmask.errors import UserError
from unmask.model.checkpoint import Model, load, save
from unmask.model.transformer import Transformer
from unmask.text.packing import Batch
from unmask.training import ema
from unmask.training.loop import begin, train
from unmask.training.phases import architecture, phases
from unmask.training.settings import Objective, Optim, Shape, Text, Train

CLUES = {2: (8,), 3: (32, 33, 33, 33, 34, 34, 34, 34, 34, 35, 35)}  # about those of the usual test files
FILES = {2: "4x4_test_sudoku.csv", 3: "sudoku_test.csv.gz"}


@dataclass(frozen=True)
class Sudoku:
    """Settings of the study."""

    box: int = 2  # side of a box: 2 for 4x4, 3 for 9x9
    steps: int = 3000  # updates of each network
    batch: int = 32  # grids in a step
    width: int = 64
    blocks: int = 3
    lr: float = 1e-3
    bases: int = 2000  # puzzles made for training; every step changes those it takes
    held_out: int = 96  # of the 288 4x4 grids, those that are kept for the test
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
        raise UserError(
            f"of {len(known)} solutions 1 to {min(len(known), 287)} can be held out, not {asked.held_out}."
        )
    kept = {known[i] for i in source.permutation(len(known))[: asked.held_out]}
    test = [puzzle for puzzle in tests or _for(sorted(kept), asked.test, clues, source) if puzzle.solution in kept]
    train = _for([grid for grid in grids if grid not in kept], asked.bases, clues, source)
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
    """The rows of a step: never twice the same puzzle, or an autoregressive network would learn them by heart."""
    known = np.array([(puzzle.given, puzzle.solution) for puzzle in puzzles])

    def rows(step: int) -> Batch:
        source = np.random.default_rng((asked.seed, step))
        some = known[source.integers(len(known), size=asked.batch)]
        # A disguise would turn 4x4 grids into held-out ones: there other cells are blanked.
        some = disguised(some, source) if asked.box == 3 else with_other_blanks(some, source)
        tokens = spelled(asked, some[:, 0], some[:, 1], objective=objective)
        return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool))

    return rows


def with_other_blanks(puzzles: np.ndarray, source: np.random.Generator) -> np.ndarray:
    """Puzzles (b, 2, cells) with as many clues at random places; some may then have several solutions."""
    b, _, cells = puzzles.shape
    rank = source.permuted(np.tile(np.arange(cells), (b, 1)), axis=1)
    given = np.where(rank < (puzzles[:, 0] > 0).sum(1, keepdims=True), puzzles[:, 1], 0)
    return np.stack([given, puzzles[:, 1]], 1)


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
