"""Pupils: an autoregressive and a masked diffusion network of one shape, taught the same puzzles for as many steps.

A grid is spelled as pairs, a token that names the cell and its digit. Names and given digits are never hidden and
never scored: both networks are taught the digits of the blanks, and only digits are drawn. Diffusion reads the cells
row by row with any number of the blanks hidden; the autoregressive network reads the given cells first and the blanks
behind them, each part row by row. Networks know distances and not places, so they see the place in every token
(`InPlace`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from studies.grids import Grid, Puzzle, disguised, make, random_puzzle, read_puzzles, solutions
from studies.stories import say
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import OBJECTIVES, objective_of
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load, save
from unmask.model.denoiser import Denoiser
from unmask.model.model import Model
from unmask.model.passes.whole import logits_at
from unmask.shapes import Network
from unmask.training import ema, noise, optim
from unmask.training.optimizers.adamw import AdamW

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
    heads: int = 4
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
    def side(self) -> int:
        return self.box**2

    @property
    def mask(self) -> int:
        """Ids of what is spelled: digits less one, names of cells, mask."""
        return self.side + self.cells


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
    """Grids (b, cells) as rows of ids: name and digit of each cell, masks for the blanks of `shown`."""
    order = np.broadcast_to(np.arange(asked.cells), given.shape)
    if objective == "ar":
        order = np.argsort(given == 0, axis=1, kind="stable")
    digits = np.take_along_axis(shown, order, 1)
    pairs = np.stack([order + asked.side, np.where(digits > 0, digits - 1, asked.mask)], 2)
    return torch.from_numpy(pairs.reshape(len(given), -1).astype(np.int64))


def read_off(asked: Sudoku, tokens: Int[Tensor, "b l"]) -> list[list[int]]:
    """The grids that rows spell."""
    cell, digit = tokens[:, ::2] - asked.side, tokens[:, 1::2] + 1
    return torch.zeros_like(digit).scatter(1, cell, digit).tolist()


@dataclass(frozen=True)
class InPlace:
    """A network that reads what stands where, as one that reads pairs and answers with digits.

    It has an id for every cell with every digit and for every blank cell, so that row, column, box and digit are in
    one embedding. A name is seen as the blank cell. Diffusion needs no names, for a blank says where it is; the
    autoregressive network keeps them, and answers at the name for the digit behind it. The first ids of an answer are
    the digits.
    """

    network: Network
    side: int
    named: bool  # with names: for an autoregressive network

    def __call__(
        self, x_t: Int[Tensor, "b l"], sigma: Float[Tensor, " b"], rows: Int[Tensor, " n"]
    ) -> Float[Tensor, "n v"]:
        first = (x_t[:, ::2] - self.side) * (self.side + 1)  # id of each cell with the digit 1
        tokens = first + x_t[:, 1::2].clamp(max=self.side)  # the mask, beyond all digits, becomes the blank
        if self.named:
            tokens = torch.stack([first + self.side, tokens], 2).flatten(1)
        logits = self.network(tokens, sigma, rows if self.named else rows // 2)
        return F.pad(logits[:, : self.side], (0, self.side**2 + 1), value=-torch.inf)


def in_place(asked: Sudoku, network: Network, objective: str) -> InPlace:
    return InPlace(network, asked.side, named=objective == "ar")


class Lesson(NamedTuple):
    """Solved puzzles, and which tokens of them are given: seen and never asked for."""

    tokens: Int[Tensor, "b l"]
    given: Bool[Tensor, "b l"]


def lessons(asked: Sudoku, puzzles: list[Puzzle], objective: str) -> Callable[[int], Lesson]:
    """The rows of a step: never twice the same puzzle, or an autoregressive network would learn them by heart."""
    known = np.array([(puzzle.given, puzzle.solution) for puzzle in puzzles])

    def rows(step: int) -> Lesson:
        source = np.random.default_rng((asked.seed, step))
        some = known[source.integers(len(known), size=asked.batch)]
        # A disguise would turn 4x4 grids into held-out ones: there other cells are blanked.
        some = disguised(some, source) if asked.box == 3 else with_other_blanks(some, source)
        whole, puzzle = (spelled(asked, some[:, 0], some[:, shown], objective=objective) for shown in (1, 0))
        return Lesson(whole, puzzle != asked.mask)

    return rows


def with_other_blanks(puzzles: np.ndarray, source: np.random.Generator) -> np.ndarray:
    """Puzzles (b, 2, cells) with as many clues at random places; some may then have several solutions."""
    b, _, cells = puzzles.shape
    rank = source.permuted(np.tile(np.arange(cells), (b, 1)), axis=1)
    given = np.where(rank < (puzzles[:, 0] > 0).sum(1, keepdims=True), puzzles[:, 1], 0)
    return np.stack([given, puzzles[:, 1]], 1)


def fresh(asked: Sudoku, objective: str) -> Transformer:
    """A network that knows nothing but the board: embeddings begin as sums of a vector of the row, one of the column,
    one of the box and one of the digit (or of the blank). All of them are trained."""
    torch.manual_seed(asked.seed)
    ar, side = objective == "ar", asked.side
    network = Transformer(
        Architecture(
            vocab=asked.cells * (side + 1),
            length=asked.cells * (2 if ar else 1),
            width=asked.width,
            blocks=asked.blocks,
            heads=asked.heads,
            causal=ar,
            reads_before=ar,
        )
    )
    cells = torch.arange(asked.cells)
    row, column = cells // side, cells % side
    rows, columns, boxes, digits = (
        torch.empty(n, asked.width).uniform_(-1, 1) / asked.width**0.5 for n in (side, side, side, side + 1)
    )
    place = rows[row] + columns[column] + boxes[row // asked.box * asked.box + column // asked.box]
    with torch.no_grad():
        network.vocab_embed.embedding.copy_((place[:, None] + digits).flatten(0, 1))
    return network


def learn(
    asked: Sudoku, network: Transformer, rows: Callable[[int], Lesson], objective: Literal["ar", "mdlm"]
) -> Iterator[float]:
    """Train; yields the nats a blank cell after every update. At the end the network has the averaged weights."""
    how = AdamW(batch=asked.batch, lr=asked.lr, ema=0.99)
    # Every hidden cell counts alike: the weights of the bound let rows with few of them drown the others.
    goal = OBJECTIVES.usual(objective)
    parameters = list(network.train().parameters())
    adamw, shadow = how.updates(Denoiser(network, goal)), ema.begin_average(parameters)
    for step in range(asked.steps):
        tokens, given = rows(step)
        drawn = noise.draw(*tokens.shape, seed=asked.seed, step=step)
        reads = in_place(asked, partial(logits_at, network), objective)
        found = goal.nats(reads, CleanRows(tokens, noise=drawn, mask=asked.mask, frozen=given))
        blanks = (~given).sum()
        (found.loss.sum() / blanks).backward()
        optim.clip(parameters, how.clip)
        optim.set_learning_rate(adamw, optim.learning_rate(step, steps=asked.steps, optim=how))
        adamw.step()
        adamw.zero_grad()
        ema.update(shadow, parameters, n=step + 1, decay=how.ema)
        yield float(found.bound.detach().sum() / blanks)
    ema.exchange(shadow, parameters)


def taught(
    asked: Sudoku, puzzles: list[Puzzle], objective: Literal["ar", "mdlm"], folder: Path | None
) -> tuple[Model, float]:
    """A network after its lessons, and the seconds of CPU they took (those of a folder: 0)."""
    place = None if folder is None else folder / f"sudoku{asked.side}_{objective}"
    if place is not None and place.is_dir():
        return load(place), 0.0
    network, began, paid = fresh(asked, objective), process_time(), []
    for step, cost in enumerate(learn(asked, network, lessons(asked, puzzles, objective), objective), 1):
        paid.append(cost)
        if step % 100 == 0:
            spent = process_time() - began
            say(f"{objective} step {step}: {np.mean(paid[-100:]):.3f} nats a blank, {spent:.0f} s of CPU")
    spent = process_time() - began
    if place is not None:
        save(place, network, mask=asked.mask, objective=objective, step=asked.steps, ema=True)
    return Model(network.freeze(), asked.mask, objective_of(objective), step=asked.steps, ema=True), spent
