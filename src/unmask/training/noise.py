"""The randomness of a step: a pure function of (seed, step), the same however the rows are shared out.

Every process draws the uniforms of the whole batch and takes its own rows, so neither the number of processes nor
the accumulation changes them, and a resumed run needs nothing but its step.
"""

import torch

from unmask.diffusion.times import stratified
from unmask.random import Noise, keys, seed_of


def draw(rows: int, length: int, *, seed: int, step: int, use: int = 0) -> Noise:
    """The noise of a step: a uniform per row, spread evenly over [0, 1), and one per token."""
    number = seed_of(seed, step, use)
    source = torch.Generator().manual_seed(number)
    even = stratified(torch.rand(rows, generator=source))
    return Noise(even, torch.rand(rows, length, generator=source), keys(number, torch.arange(rows)))
