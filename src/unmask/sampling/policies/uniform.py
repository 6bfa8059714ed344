"""The steps of a uniform D3PM: how many, and how the last one ends."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from unmask.sampling.policy import POLICIES, GridPolicy


@POLICIES.register("d3pm-uniform", "the reverse process of a uniform D3PM: all tokens redrawn, T times")
@dataclass(frozen=True)
class UniformSteps(GridPolicy):
    """T steps of the kernel's p(x_s | x_t), from its prior: for D3PM, random tokens."""

    needs: ClassVar[frozenset[str]] = frozenset({"kernel"})
    revises: ClassVar[bool] = True

    steps: int = 1000  # T
    last: Literal["draw", "argmax"] = "draw"  # argmax: the last step takes the most likely tokens, as in D3PM

    @property
    def law(self) -> str:
        return super().law + (", the last step by argmax" if self.last == "argmax" else "")
