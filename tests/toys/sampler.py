"""A toy sampler in one file: every second blank first, so many per call."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from unmask.diffusion.schedule import LogLinear, Schedule
from unmask.diffusion.times import check_total
from unmask.registry import derived
from unmask.sampling.policies.confidence import Looking
from unmask.sampling.policy import POLICIES, PolicyView


@POLICIES.register("toy-sampler", "every second blank first")
@dataclass(frozen=True)
class EverySecond(Looking):
    """Even positions from the left, then odd ones."""

    budget: ClassVar[str | None] = "calls"

    calls: int = 4  # the budget
    first: int = 0  # 0: even positions first; 1: odd ones
    schedule: Schedule = derived(LogLinear())

    def __post_init__(self) -> None:
        check_total(self.calls)

    @property
    def law(self) -> str:
        return f"approximate (every second token first, {self.calls} calls)"

    def wants(self, view: PolicyView):
        hidden, sigma = super().wants(view)
        place = torch.arange(hidden.shape[1], device=hidden.device)
        turn = torch.where(hidden, (place + self.first) % 2 * hidden.shape[1] + place, 10**6)
        left = (self.calls - view.clock).clamp(min=1)
        now = (hidden.sum(1) + left - 1) // left
        return hidden & (turn.argsort(1).argsort(1) < now[:, None]), sigma
