"""Steps of SSD-LM: the network's prediction becomes a corner of the simplex, and fresh noise is added. [Han 2022]"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.diffusion.continuous import VectorPrediction, alpha, sigma
from unmask.errors import UserError
from unmask.sampling.logits import nucleus
from unmask.sampling.policies.gaussian import GREEDY, Draw, Last, Move, VectorSteps
from unmask.sampling.policy import POLICIES

Projection = Literal["sampling", "even", "uneven"]


def project_prediction(reading: VectorPrediction, kind: Projection, p: float, draw: Draw) -> Float[Tensor, "b s v"]:
    """The prediction as a point of the cube, in units of K.

    sampling  a corner: one token of the nucleus, drawn
    even      1 at every token of the nucleus, −1 elsewhere
    uneven    the logits of the nucleus in units of K, moved so that the largest is 1; −1 elsewhere and at least
    """
    flat = reading.logits.flatten(0, 1)
    truncated = (flat if p == 1 else nucleus(flat, p)).view_as(reading.logits)
    if kind == "uneven":
        x = truncated / reading.scale
        return (x - x.amax(-1, keepdim=True) + 1).clamp(min=-1)
    if kind == "even":
        return torch.where(truncated.isneginf(), -1.0, 1.0).to(truncated.dtype)
    corner = torch.full_like(truncated, -1.0)
    return corner.scatter_(-1, draw(truncated)[..., None], 1.0)


@POLICIES.register("simplex", "SSD-LM's own loop, block after block")
@dataclass(frozen=True)
class SimplexSteps(VectorSteps):
    """T steps per block. The default is the loop that the bound belongs to; p < 1 and argmax are as published."""

    needs: ClassVar[frozenset[str]] = frozenset({"vectors", "simplex"})

    steps: int = 1000  # T, per block
    projection: Projection = "sampling"  # sampling (a token of the nucleus), even (all of them), uneven (logits)
    p: float = 1.0  # the nucleus of the projection: most likely tokens of this total probability; 0: the first
    last: Last = "draw"  # of the tokens at the end of a block: draw, or argmax (the most likely, as in the paper)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.p <= 1:
            raise UserError(f"p must be a probability from 0 to 1; saw {self.p}.")

    @property
    def law(self) -> str:
        if (self.projection, self.p, self.last) == ("sampling", 1.0, "draw"):
            return f"grid-{self.steps}"
        words = [f"{self.projection} projection", *([f"nucleus {self.p:g}"] if self.p < 1 else [])]
        return f"approximate ({', '.join([*words, *([GREEDY] if self.last == 'argmax' else [])])})"

    def move(self, step: Move) -> Float[Tensor, "b s v"]:
        """√ᾱ_s ŵ + √(1 − ᾱ_s) z with fresh z: nothing of the old noise is kept."""
        corner = project_prediction(step.reading, self.projection, self.p, step.draw)
        return step.normal.mul_(sigma(step.gamma_s).to(step.z.dtype)).add_(corner, alpha=float(alpha(step.gamma_s)))
