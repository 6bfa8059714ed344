"""DiffusionBERT's reverse step: where a token is revealed depends on which one it is, so both are drawn together."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.kernels.spindle import Spindle
from unmask.diffusion.rows import forbid
from unmask.diffusion.times import grid
from unmask.registry import derived
from unmask.sampling.policies.reverse import lots
from unmask.sampling.policy import POLICIES, Chosen, Draw, Flat, GridPolicy, Logits, PolicyView


@POLICIES.register("diffusionbert", "DiffusionBERT's own reverse step")
@dataclass(frozen=True)
class SpindleReverse(GridPolicy):
    """T steps: a position is revealed with probability Σ_v p_v r_v, and its token then has the law ∝ p_v r_v."""

    needs: ClassVar[frozenset[str]] = frozenset({"masks", "levels by token"})
    unshaped: ClassVar[bool] = True

    steps: int = 2048  # T
    kernel: Spindle = derived(Spindle())

    def time(self, clock: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return grid(self.steps).to(clock.device)[clock.clamp(max=self.steps)]

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        return view.hidden, self.kernel.sigma(self.time(view.clock)).float()

    def revealing(self, view: PolicyView, rows: Int[Tensor, " n"], size: int) -> Float[Tensor, "n v"]:
        clock = view.clock[rows // view.hidden.shape[1]]
        return self.kernel.reveals(self.time(clock + 1), self.time(clock), vocab=size)

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        p = forbid(logits.double(), view.mask).softmax(-1)
        chance = (p * self.revealing(view, rows, logits.shape[-1])).sum(-1)
        clock = view.clock[rows // view.hidden.shape[1]]
        return lots(view, rows, chance) | (clock + 1 >= self.steps), view.memory

    def tilt(self, view: PolicyView, rows: Flat, logits: Logits) -> Logits:
        return logits + self.revealing(view, rows, logits.shape[-1]).log().to(logits)
