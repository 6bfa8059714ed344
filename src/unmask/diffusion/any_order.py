"""Any-order diffusion: tokens in a drawn order, each predicted from those before it in that order. [XLNet, σ-GPT]

    −log p(x) ≤ E_s[ Σ_j −log p(x_{s_j} | x_{s_1}, .., x_{s_{j−1}}) ],  s a uniform order

This is MDLM's bound, the mean over orders, of a network that reads every token once: one pass trains all tokens of a
row, not the hidden half, and gives the exact likelihood of the row in that order. Text is written in any order at
the price of autoregression, because what was read is remembered. From left to right the likelihood is exact and
comparable with an autoregressive model's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective, steps_of_ramp
from unmask.diffusion.rows import row_nats, rows_where, spread
from unmask.errors import UserError
from unmask.shapes import Network

GIVES = frozenset({"masks", "conditionals", "orders", "two streams"})


def reading_ranks(
    u: Float[Tensor, "b l"], left: Bool[Tensor, " b"], frozen: Bool[Tensor, "b l"] | None
) -> Int[Tensor, "b l"]:
    """The order of reading, 0 first: given tokens from left to right, then the free ones by their uniforms.

    Rows of `left` read their free tokens from left to right too.
    """
    place = torch.arange(u.shape[1], device=u.device, dtype=u.dtype).expand_as(u)
    key = torch.where(left[:, None], place, u)
    if frozen is not None:
        key = torch.where(frozen, place - u.shape[1], key)
    return key.argsort(dim=1, stable=True).argsort(1)


@OBJECTIVES.register("any-order", "tokens in random orders, each predicted from those before it, with a cache")
@dataclass(frozen=True)
class AnyOrder(Objective):
    """Prediction in random orders. A share of the rows is read from left to right, at first all of them."""

    facts: ClassVar[Facts] = Facts(gives=GIVES, optimizer="muon", asked=1.0)
    means: ClassVar[str] = "upper bound on -log p, the mean over random orders of the chain rule"

    left: float = 0.1  # share of the training rows that are read from left to right
    ramp: float = 0.25  # steps in which that share falls from 1, or below 1 their share of a run's; 0: from the start

    def __post_init__(self) -> None:
        if not 0 <= self.left <= 1:
            raise UserError(f"left is a share of the rows, from 0 to 1; saw {self.left:g}.")
        if self.ramp < 0:
            raise UserError(f"ramp must be at least 0; saw {self.ramp:g}.")

    def for_steps(self, steps: int) -> "AnyOrder":
        return replace(self, ramp=steps_of_ramp(self.ramp, steps))

    def estimators(self) -> Mapping[str, Objective]:
        return {self.name: replace(self, left=0.0, ramp=0.0), LeftToRightLikelihood.name: LeftToRightLikelihood()}

    def state(self) -> dict[str, Tensor]:
        """Steps done, where the share of left-to-right rows depends on them."""
        return {"steps": torch.zeros(1)} if self.ramp else {}

    def advance(self, state: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value + 1 for name, value in state.items()}

    def share(self, state: Mapping[str, Tensor]) -> float:
        """The share of rows that are read from left to right now."""
        if not self.ramp or not state:
            return self.left
        done = min(1.0, float(state["steps"]) / self.ramp)
        return 1.0 - done * (1.0 - self.left)

    def context(self, x0: Int[Tensor, "b l"]) -> Mapping[str, Any]:
        place = torch.arange(x0.shape[1], device=x0.device).expand_as(x0)
        return {"clean": x0, "rank": place}

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """−log p of each free token given those before it, in the order of the noise: the chain rule."""
        x0, noise, mask = clean.x0, clean.noise, clean.mask
        rank = reading_ranks(noise.u, noise.t < self.share(clean.state), clean.frozen)
        rows, sigma = rows_where(clean.free), torch.zeros(len(x0), device=x0.device)
        logits = network(torch.full_like(x0, mask), sigma, rows, clean=x0, rank=rank)
        nats = spread(row_nats(logits, x0.flatten()[rows], mask=mask), rows, x0)
        return Nats(nats, nats)


@dataclass(frozen=True)
class LeftToRightLikelihood(AnyOrder):
    """The exact likelihood of writing from left to right with the same network."""

    name: ClassVar[str] = "left-to-right"
    facts: ClassVar[Facts] = Facts(gives=GIVES, exact=True, asked=1.0)
    means: ClassVar[str] = "exact: -log p of each token after those before it, written from left to right"

    left: float = 1.0
    ramp: float = 0.0
