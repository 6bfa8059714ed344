"""Draw every blank, then hide the least likely of all drawn tokens again: fewer from step to step. [RDM, DPLM]"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.diffusion.certainty import surest
from unmask.diffusion.schedule import LogLinear, Schedule, shown_sigma
from unmask.random import Dice
from unmask.registry import derived
from unmask.sampling.policy import POLICIES, Flat, GridPolicy, Memory, PolicyView


@POLICIES.register("rdm", "draw every blank, hide the least likely tokens again: DPLM's sampler, biased")
@dataclass(frozen=True)
class Rdm(GridPolicy):
    """After step i of T, ⌊n (1 − i/T)⌋ of a row's n tokens are hidden: the least likely ones when they were drawn."""

    revises: ClassVar[bool] = True

    steps: int = 500  # T
    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    @property
    def law(self) -> str:
        return f"approximate ({self.steps} steps, unlikely tokens hidden again)"

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """(step (b), log-probability of each token when it was drawn (b w))."""
        return hidden.new_zeros(len(hidden), dtype=torch.long), hidden.new_zeros(hidden.shape, dtype=torch.float64)

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        share = view.hidden.sum(1).double() / view.free.sum(1).clamp(min=1)
        return view.hidden, shown_sigma(self.schedule, share).float()

    def revise(self, view: PolicyView, rows: Flat, log_probs: Tensor) -> tuple[Bool[Tensor, "b w"], Memory]:
        step, written = view.memory
        step, written = step + 1, written.flatten().index_copy(0, rows, log_probs.double()).view_as(written)
        hide = view.free.sum(1) * (self.steps - step).clamp(min=0) // self.steps
        return surest(torch.where(view.free, -written, -torch.inf), hide), (step, written)
