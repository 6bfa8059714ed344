"""Steps of continuous diffusion: from noisy vectors and an estimate of the clean ones to less noisy vectors."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.diffusion.continuous import VectorPrediction, carried_on, forward_variance, posterior
from unmask.sampling.policy import POLICIES, GridPolicy, PolicyView

Last = Literal["draw", "argmax"]
Draw = Callable[[Tensor], Tensor]  # tokens (b s) from logits (b s v), by each position's own random number
HELD = "given text is held at its noised truth, approximate"
GREEDY = "the most likely token at the end"


class Move(NamedTuple):
    """A step of the continuous process, from the noise level γ_t to γ_s."""

    z: Float[Tensor, "b s e"]  # z_t
    reading: VectorPrediction  # what the network said of it
    gamma_s: Float[Tensor, ""]
    gamma_t: Float[Tensor, ""]
    normal: Float[Tensor, "b s e"]  # fresh normal numbers, which may be overwritten
    draw: Draw


class VectorSteps(GridPolicy):
    """A policy of the continuous process: what a step does."""

    last: Last

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        """Every position in every call: the process asks by itself."""
        return view.hidden, torch.zeros(len(view.hidden), device=view.hidden.device)

    @abstractmethod
    def move(self, step: Move) -> Float[Tensor, "b s e"]:
        """z_s."""


@POLICIES.register("gaussian", "ancestral steps of continuous diffusion")
@dataclass(frozen=True)
class Gaussian(VectorSteps):
    """T steps of q(z_s | z_t, x̂): the model's own reverse process. The tokens are drawn at the end."""

    needs: ClassVar[frozenset[str]] = frozenset({"vectors", "embeddings"})

    steps: int = 256  # T
    last: Last = "draw"  # of the tokens at the end: draw, or argmax (the most likely, as Diffusion-LM's code does)

    @property
    def law(self) -> str:
        return f"grid-{self.steps} ({HELD})" if self.last == "draw" else f"approximate ({GREEDY}; {HELD})"

    def move(self, step: Move) -> Float[Tensor, "b s e"]:
        assert step.reading.x is not None
        mean, variance = posterior(step.z, step.reading.x, step.gamma_s, step.gamma_t)
        variance = forward_variance(step.gamma_s, step.gamma_t) if step.reading.wide else variance
        return mean + variance.sqrt().to(step.z.dtype) * step.normal


@POLICIES.register("ddim", "deterministic steps of continuous diffusion")
@dataclass(frozen=True)
class DDIM(VectorSteps):
    """T steps without new noise: z keeps the noise it began with. Few steps are enough."""

    needs: ClassVar[frozenset[str]] = frozenset({"vectors", "embeddings"})

    steps: int = 64  # T
    last: Last = "draw"  # of the tokens at the end: draw or argmax

    @property
    def law(self) -> str:
        end = "" if self.last == "draw" else f"; {GREEDY}"
        return f"approximate (deterministic steps{end}; {HELD})"

    def move(self, step: Move) -> Float[Tensor, "b s e"]:
        assert step.reading.x is not None
        return carried_on(step.z, step.reading.x, step.gamma_s, step.gamma_t)
