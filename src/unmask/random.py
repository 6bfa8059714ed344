"""Random numbers as pure functions: no state is consumed, so a number depends only on its key.

    Dice       samplers: (seed, row, position, draw number) -> a uniform in [0, 1) with 53 random bits
    Noise      objectives: the random numbers of some rows at one step
    stream     evaluation: a generator for each (seed, use, row, pass)
    shuffled   data: the i-th of n items in a random order, without storing the order

A row's numbers do not depend on the batch it is in, on the number of processes, or on what came before.
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

# Purposes of numbers; two purposes never share a number.
ORDER, TOKEN, WHERE, HIDE = 0, 1, 2, 3
GAUSSIAN = 7

GOLDEN = -7046029254386353131  # 0x9e3779b97f4a7c15, as the signed number that torch has


def mix(z: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """The splitmix64 step: 64 bits in, 64 well-mixed bits out. Integer products wrap around, as intended."""
    z = z + GOLDEN
    z = (z ^ shift_right(z, 30)) * -4658895280553007687  # 0xbf58476d1ce4e5b9
    z = (z ^ shift_right(z, 27)) * -7723592293110705685  # 0x94d049bb133111eb
    return z ^ shift_right(z, 31)


def shift_right(z: Int[Tensor, "*n"], bits: int) -> Int[Tensor, "*n"]:
    """A logical right shift (fills with zeros); torch's own repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def keys(seed: int, ids: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """One key for each row, from the seed and the row's number."""
    root = torch.tensor(((seed + 2**63) % 2**64) - 2**63, dtype=torch.int64, device=ids.device)
    # Seed and id are mixed differently: otherwise seed 2 row 5 would have the numbers of seed 5 row 2.
    return mix(mix(root) + ids.long() * GOLDEN)


@dataclass(frozen=True)
class Dice:
    """The random numbers of some rows. `start` is the position of their first column."""

    key: Int[Tensor, " b"]
    start: int = 0

    def take(self, index: Int[Tensor, " n"]) -> "Dice":
        return Dice(self.key[index], self.start)

    def grid(self, width: int, purpose: int, *, number: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b w"]:
        """A number for each row and each of `width` positions; `number` distinguishes repeated draws."""
        position = torch.arange(self.start, self.start + width, device=self.key.device)
        turn = 0 if number is None else (number + 1)[:, None] << 32
        return unit(mix(self.key[:, None] ^ mix(position + turn + (purpose << 60))))

    def at(
        self, row: Int[Tensor, " n"], column: Int[Tensor, " n"], number: Int[Tensor, " n"], purpose: int
    ) -> Float[Tensor, " n"]:
        """The same at some (row, column) pairs only."""
        place = column + ((number + 1) << 32) + (self.start + (purpose << 60))
        return unit(mix(self.key[row] ^ mix(place)))


def gaussians(key: Int[Tensor, " b"], number: int, shape: tuple[int, ...]) -> Float[Tensor, "b ..."]:
    """Standard normal numbers of a shape for each row, drawn in place; `number` distinguishes repeated draws.

    For large tensors: several times faster than hashing numbers one by one, and as much a function of the key.
    """
    numbers = torch.empty(len(key), *shape, device=key.device)
    source = torch.Generator(key.device)
    seeds = mix(key ^ mix(torch.tensor(number + (GAUSSIAN << 60), device=key.device)))
    for row, seed in zip(numbers, (seeds & (2**63 - 1)).tolist(), strict=True):
        row.normal_(generator=source.manual_seed(seed))
    return numbers


def unit(bits: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """64 random bits to a multiple of 2^-53 in [0, 1)."""
    return shift_right(bits, 11).double() * 2.0**-53


def seed_of(*numbers: int) -> int:
    """A seed from several numbers: similar tuples give unrelated seeds, and tuples of equal sum differ."""
    mixed = 0
    for number in numbers:  # the finalizer of splitmix64, once for each
        mixed = (mixed + 0x9E3779B97F4A7C15 + number) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        mixed ^= mixed >> 31
    return mixed >> 1


@dataclass(frozen=True)
class Noise:
    """The random numbers that an objective uses for some rows."""

    t: Float[Tensor, " b"]  # uniforms in [0, 1), stratified over the batch: the time of each row
    u: Float[Tensor, "b l"]  # uniforms: which tokens are hidden, or in which order
    key: Int[Tensor, " b"] | None = None  # of each row, for more numbers than these

    def rows(self, chosen: slice) -> "Noise":
        return Noise(self.t[chosen], self.u[chosen], None if self.key is None else self.key[chosen])

    def to(self, device: torch.device) -> "Noise":
        return Noise(self.t.to(device), self.u.to(device), None if self.key is None else self.key.to(device))

    def uniform(self, width: int, use: int = 0) -> Float[Tensor, "b w"]:
        """More uniforms: `width` for each row. Different uses do not share a number."""
        if self.key is None:
            raise ValueError("this noise has no keys: give Noise(t, u, key)")
        return Dice(self.key).grid(width, 4 + use)

    def normal(self, width: int, use: int = 0) -> Float[Tensor, "b l d"]:
        """Standard normal numbers, `width` for each token, by the Box-Muller transform."""
        length = self.u.shape[1]
        a, b = self.uniform(2 * length * width, use).chunk(2, dim=1)
        numbers = torch.sqrt(-2 * torch.log1p(-a)) * torch.cos(2 * torch.pi * b)
        return numbers.view(-1, length, width).to(self.u.dtype)


def stream(seed: int, use: int, *, row: int = 0, number: int = 0) -> np.random.Generator:
    """A separate generator for each use, row and pass."""
    key = np.array([seed, use], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, row, number], np.uint64)))


# A keyed bijection gives one entry of a permutation in constant time and memory, however large n is. It is a Feistel
# network on pairs: i = left * b + right in a rectangle of a * b >= n cells, where each coordinate in turn is shifted
# by a hash of the other. The few results outside n are mapped again.
SMALL = 1 << 12  # below this the order is drawn and looked up: the coordinates would be too few to hash well
ROUNDS = 8


def permute_places(places: np.ndarray, n: int, *, seed: int, epoch: int) -> np.ndarray:
    """The entries at some places, each in [0, n), of the permutation given by (seed, epoch)."""
    random = np.random.default_rng((seed, epoch))
    if n <= SMALL:
        return random.permutation(n)[places]
    keys = random.integers(0, 2**64, ROUNDS, np.uint64)
    a = np.uint64(isqrt(n - 1) + 1)
    b = np.uint64(-(-n // int(a)))
    order = feistel(places.astype(np.uint64), keys, a, b)
    while (outside := order >= n).any():
        order[outside] = feistel(order[outside], keys, a, b)
    return order.astype(np.int64)


def feistel(x: np.ndarray, keys: np.ndarray, a: np.uint64, b: np.uint64) -> np.ndarray:
    left, right = np.divmod(x, b)
    for first, second in keys.reshape(-1, 2):
        left = (left + finalize_bits(right ^ first) % a) % a
        right = (right + finalize_bits(left ^ second) % b) % b
    return left * b + right


def finalize_bits(x: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of x (the finalizer of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
