"""Steps of continuous diffusion: from noisy vectors and an estimate of the clean ones to less noisy vectors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.diffusion.continuous import VectorPrediction, carried_on, forward_variance, posterior
from unmask.diffusion.times import check_total
from unmask.sampling.policy import POLICIES, Policy, PolicyView

Last = Literal["draw", "argmax"]
Draw = Callable[[Tensor], Tensor]  # tokens (b s) from logits (b s v), by each position's own random number
HELD = "given text is held at its noised truth, approximate"
GREEDY = "the most likely token at the end"


@runtime_checkable
class Steps(Protocol):
    """A policy of the continuous process: what a step does."""

    steps: int
    last: Last

    def moved(
        self,
        z: Float[Tensor, "b s e"],
        reading: VectorPrediction,
        gamma_s: Float[Tensor, ""],
        gamma_t: Float[Tensor, ""],
        normal: Float[Tensor, "b s e"],
        draw: Draw,
    ) -> Float[Tensor, "b s e"]:
        """z_s, from z_t and what the network said of it."""


def everywhere(view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
    """A policy of the continuous process wants every position in every call: the process asks by itself."""
    return view.hidden, torch.zeros(len(view.hidden), device=view.hidden.device)


@POLICIES.register("gaussian", "ancestral steps of continuous diffusion")
@dataclass(frozen=True)
class Gaussian(Policy):
    """T steps of q(z_s | z_t, x̂): the model's own reverse process. The tokens are drawn at the end."""

    needs: ClassVar[frozenset[str]] = frozenset({"vectors", "embeddings"})
    budget: ClassVar[str | None] = "steps"

    steps: int = 256  # T
    last: Last = "draw"  # of the tokens at the end: draw, or argmax (the most likely, as Diffusion-LM's code does)

    def __post_init__(self) -> None:
        check_total(self.steps)

    @property
    def law(self) -> str:
        return f"grid-{self.steps} ({HELD})" if self.last == "draw" else f"approximate ({GREEDY}; {HELD})"

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        return everywhere(view)

    def moved(
        self,
        z: Float[Tensor, "b s e"],
        reading: VectorPrediction,
        gamma_s: Float[Tensor, ""],
        gamma_t: Float[Tensor, ""],
        normal: Float[Tensor, "b s e"],
        draw: Draw,
    ) -> Float[Tensor, "b s e"]:
        assert reading.x is not None
        mean, variance = posterior(z, reading.x, gamma_s, gamma_t)
        variance = forward_variance(gamma_s, gamma_t) if reading.wide else variance
        return mean + variance.sqrt().to(z.dtype) * normal


@POLICIES.register("ddim", "deterministic steps of continuous diffusion")
@dataclass(frozen=True)
class DDIM(Policy):
    """T steps without new noise: z keeps the noise it began with. Few steps are enough."""

    needs: ClassVar[frozenset[str]] = frozenset({"vectors", "embeddings"})
    budget: ClassVar[str | None] = "steps"

    steps: int = 64  # T
    last: Last = "draw"  # of the tokens at the end: draw or argmax

    def __post_init__(self) -> None:
        check_total(self.steps)

    @property
    def law(self) -> str:
        end = "" if self.last == "draw" else f"; {GREEDY}"
        return f"approximate (deterministic steps{end}; {HELD})"

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        return everywhere(view)

    def moved(
        self,
        z: Float[Tensor, "b s e"],
        reading: VectorPrediction,
        gamma_s: Float[Tensor, ""],
        gamma_t: Float[Tensor, ""],
        normal: Float[Tensor, "b s e"],
        draw: Draw,
    ) -> Float[Tensor, "b s e"]:
        assert reading.x is not None
        return carried_on(z, reading.x, gamma_s, gamma_t)
