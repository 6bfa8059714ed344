"""A toy kernel in one file: every token becomes the first letter, as if it were the mask."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.corruption import hide
from unmask.diffusion.kernel import KERNELS, Kernel, KernelStep
from unmask.diffusion.kernels.absorbing import absorbing_log_step
from unmask.diffusion.schedule import LogLinear

LEVELS = LogLinear(eps=0)


def letter(mask: int) -> int:
    """The smallest id that is not the mask's."""
    return int(mask == 0)


@KERNELS.register("toy-kernel")
@dataclass(frozen=True)
class Collapse(Kernel):
    """Text that becomes one letter."""

    def sigma(self, t: Tensor) -> Tensor:
        return LEVELS.at(t).sigma

    def prior(self, u: Tensor, *, mask: int) -> Tensor:
        return torch.full_like(u, letter(mask), dtype=torch.long)

    def forward(self, clean: CleanRows, t: Tensor) -> Tensor:
        return hide(clean.x0, t, clean.noise.u, mask=letter(clean.mask), frozen=clean.frozen)

    def log_step(self, log_p: Tensor, step: KernelStep) -> Tensor:
        return absorbing_log_step(log_p, step.x_t, LEVELS.at(step.s), LEVELS.at(step.t), mask=letter(step.mask))
