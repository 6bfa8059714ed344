"""Batches: a pure function of (seed, step, rank, world). Resuming needs one integer, the step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from unmask.errors import UserError
from unmask.random import permute_places, stream
from unmask.text.corpus.packed import Packed
from unmask.text.row import Role, Rows

CUT, ROOM = 3, 4  # the purposes of random streams
STRAND = 1  # distinguishes the coins of strands from the order of the rows


@dataclass(frozen=True)
class Batches:
    """Endless batches: every row of the data once per epoch, in a new order each epoch.

    `size` counts the rows of a step over all ranks, so the order of the rows does not depend on the world. A
    batch that runs over the end of an epoch takes the rest from the next one.
    """

    packed: Packed
    size: int
    seed: int = 0
    cut: float = 0.0  # share of the rows that are cut to a random length; the rest of such a row is not seen
    complement: np.ndarray | None = None  # of each id of DNA: half of the rows are read from the other strand

    def __post_init__(self) -> None:
        check_batch_size(self.size)
        if self.cut and not self.packed.layout.continuous:
            raise UserError(
                f"random lengths are for rows of a stream: use --pack stream, or --text.lengths whole. Rows "
                f"packed as {self.packed.layout.name!r} have the lengths of their documents, or marks at their ends."
            )

    def at(self, step: int, *, rank: int = 0, world: int = 1) -> Rows:
        """The rows of one rank at one step; concatenated in rank order they equal the rows of a single process."""
        return self.read(self.numbers(step, rank=rank, world=world), rows_of(rank, self.size, world), step)

    def read(self, numbers: np.ndarray, mine: np.ndarray, step: int) -> Rows:
        """The rows with these numbers, as they stand at the places `mine` of a step."""
        turned = None
        if self.complement is not None:
            turned = np.random.default_rng((self.seed, STRAND, step)).random(self.size)[mine] < 0.5
        rows = self.packed.rows(numbers, reversed=turned, complement=self.complement)
        if self.packed.layout.draws_room:
            lengths = [
                self.packed.layout.room(roles, stream(self.seed, ROOM, row=int(place), number=step).random())
                for roles, place in zip(rows.roles.numpy(), mine, strict=True)
            ]
        elif self.cut:
            lengths = [self.length_at(step, int(place)) for place in mine]
        else:
            return rows
        beyond = torch.arange(self.packed.length) >= torch.tensor(lengths)[:, None]
        return rows._replace(roles=rows.roles.masked_fill(beyond, Role.PAD))

    def length_at(self, step: int, place: int) -> int:
        """The length of a row of a step: the whole row, or uniform from 2 on."""
        dice = stream(self.seed, CUT, row=place, number=step)
        return self.packed.length if dice.random() >= self.cut else int(dice.integers(2, self.packed.length))

    def numbers(self, step: int, *, rank: int = 0, world: int = 1) -> np.ndarray:
        return self.shuffled_rows(step * self.size + rows_of(rank, self.size, world))

    def shuffled_rows(self, places: np.ndarray) -> np.ndarray:
        """The rows of the data that come at these places of an endless reading, a new order in each epoch."""
        epochs, places = np.divmod(places, len(self.packed))
        numbers = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            numbers[here] = permute_places(places[here], len(self.packed), seed=self.seed, epoch=epoch)
        return numbers


@dataclass(frozen=True)
class Lanes:
    """Endless batches for networks that carry a memory: row i of a step continues row i of the step before.

    The stream is cut into `size` texts of equal length, the lanes, and a step takes the next row of each. A row
    begins with the last token of the row before, so that every token of a lane is predicted once per epoch; fewer
    than `size` rows at the end of the stream are left over. An epoch begins at the first rows, without a memory.
    """

    packed: Packed
    size: int

    def __post_init__(self) -> None:
        check_batch_size(self.size)
        if not self.packed.layout.continuous:
            raise UserError(
                f"a network that carries a memory reads one text after another: use --pack stream, not "
                f"{self.packed.layout.name}."
            )
        if self.rows < 1:
            raise UserError(
                f"the data has {self.packed.corpus.tokens:,} tokens, too few for {self.size} texts of one row of "
                f"{self.packed.length} each, which the rows of a batch continue: use a smaller batch, a shorter "
                "length or more text."
            )

    @property
    def rows(self) -> int:
        """Rows of a lane."""
        return (self.packed.corpus.tokens - 1) // (self.packed.length - 1) // self.size

    @property
    def tokens(self) -> int:
        """Tokens of a lane that are predicted."""
        return self.rows * (self.packed.length - 1)

    def at(self, step: int, *, rank: int = 0, world: int = 1) -> Rows:
        """The rows of one rank at one step; concatenated in rank order they equal the rows of a single process."""
        place = step % self.rows
        starts = rows_of(rank, self.size, world) * self.tokens + place * (self.packed.length - 1)
        tokens = self.packed.stretches(starts)
        return Rows(tokens, torch.full_like(tokens, Role.FREE, dtype=torch.int8), begins=place == 0)


def check_batch_size(size: int) -> None:
    if size < 1:
        raise UserError(f"a batch needs at least one row, not {size}")


def rows_of(rank: int, size: int, world: int) -> np.ndarray:
    if size % world:
        raise UserError(f"a batch of {size} rows cannot be shared equally by {world} processes")
    mine = size // world
    return rank * mine + np.arange(mine)


def in_order(packed: Packed, size: int) -> Iterator[Rows]:
    """Every row once, in the order of the data; the last batch may be smaller. For evaluation."""
    for start in range(0, len(packed), size):
        yield packed.rows(range(start, min(start + size, len(packed))))
