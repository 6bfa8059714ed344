"""A mixture: rows of several texts in given shares of the tokens, a pure function of (seed, step).

`a.txt:3 b.jsonl:1` is a mixture of which a.txt is three quarters. The rows of a run are numbered; row g is of the
first text if ⌊(g + 1) p + u⌋ > ⌊g p + u⌋ for its share p and an offset u; the rest are shared out in the same way.
So the rows of a text before g are known without counting, and every prefix of a run has the shares to within a row.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from unmask.random import stream
from unmask.text.corpus.batches import Batches, rows_of
from unmask.text.corpus.packed import Packed
from unmask.text.row import Rows

OFFSET = 5  # the purpose of a random stream


@dataclass(frozen=True)
class Mixture:
    """Endless batches of several texts; `weights` are shares of the tokens of text, in any unit."""

    packed: Packed  # all of them
    parts: tuple[Batches, ...]
    weights: tuple[float, ...]
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.parts[0].size

    @cached_property
    def shares(self) -> np.ndarray:
        """The share of each text in the rows: that of its tokens, divided by its tokens per row."""
        tokens = [len(part.packed) / part.packed.corpus.tokens for part in self.parts]
        rows = np.array(self.weights) * np.array(tokens)
        return rows / rows.sum()

    def at(self, step: int, *, rank: int = 0, world: int = 1) -> Rows:
        """The rows of one rank at one step; concatenated in rank order they equal the rows of a single process."""
        mine = rows_of(rank, self.size, world)
        which, numbers = self.places(step * self.size + mine)
        whole: Rows | None = None
        for number, part in enumerate(self.parts):
            here = which == number
            if not here.any():
                continue
            rows = part.read(part.shuffled_rows(numbers[here]), mine[here], step)
            if whole is None:
                shape = (len(mine), rows.tokens.shape[1])
                whole = Rows(rows.tokens.new_zeros(shape), rows.roles.new_zeros(shape))
            index = torch.from_numpy(np.flatnonzero(here))
            whole.tokens[index], whole.roles[index] = rows.tokens, rows.roles
        assert whole is not None
        return whole

    def places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The text of each of these rows of the run, and its number among the rows of that text."""
        which, numbers = np.full(len(rows), len(self.parts) - 1), rows.copy()
        unplaced, left = np.ones(len(rows), bool), 1.0
        for number, share in enumerate(self.shares[:-1]):
            before, after = (self.rows_before(numbers + more, number, share / left) for more in (0, 1))
            taken = unplaced & (after > before)
            which[taken] = number
            numbers = np.where(taken, before, np.where(unplaced, numbers - before, numbers))
            unplaced &= ~taken
            left -= share
        return which, numbers

    def rows_before(self, rows: np.ndarray, number: int, share: float) -> np.ndarray:
        """How many of the first `rows` rows that are left are of a text."""
        offset = stream(self.parts[0].seed, OFFSET, row=number, number=0).random()
        return np.floor(rows * min(1.0, share) + offset).astype(np.int64)

    def passes(self, steps: int) -> list[float]:
        """How often each text is read in so many steps."""
        left, counts = np.array([steps * self.size]), []
        rest = 1.0
        for number, share in enumerate(self.shares[:-1]):
            counts.append(int(self.rows_before(left, number, share / rest)[0]))
            left, rest = left - counts[-1], rest - share
        counts.append(int(left[0]))
        return [count / len(part.packed) for count, part in zip(counts, self.parts, strict=True)]

    def lines(self, steps: int) -> list[str]:
        """What a run of so many steps reads of each text."""
        total = sum(self.weights)
        return [
            f"{name}: {weight / total:.1%} of the tokens, {passes:.2g} passes"
            for name, weight, passes in zip(self.names, self.weights, self.passes(steps), strict=True)
        ]
