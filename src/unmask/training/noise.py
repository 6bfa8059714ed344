"""The random numbers of a step: a pure function of (seed, step), however the rows are distributed.

Every process draws the uniforms of the whole batch and takes its own rows. So neither the number of processes nor
gradient accumulation changes them, and a resumed run needs only its step.
"""

import torch

from unmask.diffusion.times import stratified_times
from unmask.random import Noise, keys, seed_of


def draw(rows: int, length: int, *, seed: int, step: int, use: int = 0) -> Noise:
    """The noise of a step: one uniform per row, stratified over [0, 1), and one per token."""
    number = seed_of(seed, step, use)
    source = torch.Generator().manual_seed(number)
    even = stratified_times(torch.rand(rows, generator=source))
    return Noise(even, torch.rand(rows, length, generator=source), keys(number, torch.arange(rows)))
