"""The steps of a uniform D3PM: how many, and how the last one ends."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from unmask.diffusion.times import check_total
from unmask.sampling.policy import POLICIES, Policy


@POLICIES.register("d3pm-uniform", "the reverse process of a uniform D3PM: all tokens redrawn, T times")
@dataclass(frozen=True)
class UniformSteps(Policy):
    """T steps of the kernel's p(x_s | x_t), from its prior: for D3PM, random tokens."""

    needs: ClassVar[frozenset[str]] = frozenset({"kernel"})
    budget: ClassVar[str | None] = "steps"
    revises: ClassVar[bool] = True

    steps: int = 1000  # T
    last: Literal["draw", "argmax"] = "draw"  # argmax: the last step takes the most likely tokens, as in D3PM

    def __post_init__(self) -> None:
        check_total(self.steps)

    @property
    def law(self) -> str:
        return f"grid-{self.steps}" + (", the last step by argmax" if self.last == "argmax" else "")
