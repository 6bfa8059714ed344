"""The randomness of an evaluation: a pure function of (seed, row, pass), independent of batches and processes."""

import numpy as np

from unmask.errors import UserError
from unmask.random import stream

DTYPE = "float64"  # of every random number
SPREAD, HIDE, BATCH = 0, 1, 2  # the purpose of a random stream


def check_seed(seed: int) -> None:
    if not 0 <= seed < 1 << 64:
        raise UserError(f"the seed must be 0 or more and below 2^64, not {seed}.")


def uniforms(seed: int, row: int, number: int, length: int) -> np.ndarray:
    """One uniform number per position, for one row in one pass: which tokens are hidden, or in which order."""
    check_seed(seed)
    return stream(seed, HIDE, row=row, number=number).random(length)


def when(seed: int, rows: int, number: int) -> np.ndarray:
    """A time in [0, 1) per row in one pass: uniform for each row, stratified over the rows and over the passes.

    Each row has one of `rows` equal cells, in random order, and a uniform time within it. Every pass shifts all times
    by the next number of van der Corput's sequence, so that a row's times are spread over its passes too.
    """
    check_seed(seed)
    source = stream(seed, SPREAD)
    base = (source.permutation(rows) + source.random(rows)) / rows
    return (base + van_der_corput(number)) % 1


def van_der_corput(number: int) -> float:
    """0, 1/2, 1/4, 3/4, 1/8, ...: the binary digits of a number in reverse, after the point."""
    value, place = 0.0, 0.5
    while number:
        value += place * (number & 1)
        number, place = number >> 1, place / 2
    return value
