"""Batches: a pure function of (seed, step, rank, world). Resuming needs one integer, the step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError
from unmask.random import shuffled
from unmask.text.corpus.rows import Batch, Packed


@dataclass(frozen=True)
class Batches:
    """Endless batches: every row of the data once per epoch, in a new order each epoch.

    `size` counts the rows of a step over all ranks, so the order of the rows does not depend on the world. A
    batch that runs over the end of an epoch takes the rest from the next one.
    """

    packed: Packed
    size: int
    seed: int = 0
    lanes: bool = False  # row i of a step continues row i of the step before: for networks that carry a memory

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"a batch needs at least one row, not {self.size}")
        if self.lanes and len(self.packed) < self.size:
            raise UserError(
                f"the data has {len(self.packed)} rows, fewer than the {self.size} of a batch that each continue one "
                "text: use a smaller batch or more data"
            )

    def at(self, step: int, *, rank: int = 0, world: int = 1) -> Batch:
        """The rows of one rank at one step; concatenated in rank order they equal the rows of a single process."""
        return self.packed.rows(self.numbers(step, rank=rank, world=world))

    def numbers(self, step: int, *, rank: int = 0, world: int = 1) -> np.ndarray:
        """The row numbers of one rank at one step."""
        if self.size % world:
            raise UserError(f"a batch of {self.size} rows cannot be shared equally by {world} processes")
        mine = self.size // world
        if self.lanes:
            long = len(self.packed) // self.size  # rows of a lane; what is left over at the end is not used
            return (rank * mine + np.arange(mine)) * long + step % long
        places = step * self.size + rank * mine + np.arange(mine)
        epochs, places = np.divmod(places, len(self.packed))
        numbers = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            numbers[here] = shuffled(places[here], len(self.packed), seed=self.seed, epoch=epoch)
        return numbers


def in_order(packed: Packed, size: int) -> Iterator[Batch]:
    """Every row once, in the order of the data; the last batch may be smaller. For evaluation."""
    for start in range(0, len(packed), size):
        yield packed.rows(range(start, min(start + size, len(packed))))
