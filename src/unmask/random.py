"""Random numbers as a function: (seed, row, position, draw number) -> a uniform in [0, 1), with 53 random bits.

Nothing is consumed, so a row's numbers do not depend on how many rows stand beside it, on their order, or on which of
them have finished.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# What a number is for; two purposes never share a number.
ORDER, TOKEN, WHERE, HIDE = 0, 1, 2, 3

GOLDEN = -7046029254386353131  # 0x9e3779b97f4a7c15, as the signed number that torch has


def mix(z: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """The splitmix64 step: 64 bits in, 64 well-mixed bits out. Integer products wrap around, as they should."""
    z = z + GOLDEN
    z = (z ^ shifted(z, 30)) * -4658895280553007687  # 0xbf58476d1ce4e5b9
    z = (z ^ shifted(z, 27)) * -7723592293110705685  # 0x94d049bb133111eb
    return z ^ shifted(z, 31)


def shifted(z: Int[Tensor, "*n"], bits: int) -> Int[Tensor, "*n"]:
    """A shift to the right that brings in zeros; torch's own repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def keys(seed: int, ids: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """One key for each row, from the seed and the row's number."""
    root = torch.tensor(((seed + 2**63) % 2**64) - 2**63, dtype=torch.int64, device=ids.device)
    # A step in ids must not be undone by one in the seed: were both mixed alike, seed 2 row 5 would be seed 5 row 2.
    return mix(mix(root) + ids.long() * GOLDEN)


@dataclass(frozen=True)
class Dice:
    """The numbers of some rows. `start` is the position of the first column of what they look at."""

    key: Int[Tensor, " b"]
    start: int = 0

    def take(self, index: Int[Tensor, " n"]) -> "Dice":
        return Dice(self.key[index], self.start)

    def grid(self, width: int, purpose: int, *, number: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b w"]:
        """A number for each row and each of `width` positions; `number` sets repeated draws apart."""
        position = torch.arange(self.start, self.start + width, device=self.key.device)
        turn = 0 if number is None else (number + 1)[:, None] << 32
        return unit(mix(self.key[:, None] ^ mix(position + turn + (purpose << 60))))

    def at(
        self, row: Int[Tensor, " n"], column: Int[Tensor, " n"], number: Int[Tensor, " n"], purpose: int
    ) -> Float[Tensor, " n"]:
        """The same at some (row, column) only."""
        place = column + ((number + 1) << 32) + (self.start + (purpose << 60))
        return unit(mix(self.key[row] ^ mix(place)))


def unit(bits: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """64 random bits to a multiple of 2^-53 in [0, 1)."""
    return shifted(bits, 11).double() * 2.0**-53
