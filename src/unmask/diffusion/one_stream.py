"""Any-order diffusion in one stream: a token carries the place of the next one in its order, and predicts it. [σ-GPT]

The bound and the likelihoods are those of `any_order`: the chain rule in a drawn order. A row is read once, at the
price of an autoregressive network, and from left to right it is one: `--init` with autoregressive weights starts from
their likelihood, and a share of left-to-right rows that falls from 1 leads from there to all orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.diffusion.any_order import AnyOrder, LeftToRightLikelihood, reading_ranks
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.rows import row_nats, rows_where, spread
from unmask.shapes import Network

GIVES = frozenset({"masks", "conditionals", "orders", "one stream"})


@OBJECTIVES.register("one-stream", "any order at the price of autoregression: a token carries the place of the next")
@dataclass(frozen=True)
class OneStream(AnyOrder):
    """Prediction in random orders, in one stream. The first token of a row is given, as for autoregression."""

    facts: ClassVar[Facts] = Facts(gives=GIVES, optimizer="muon", asked=1.0)
    leads: ClassVar[bool] = True

    def estimators(self) -> Mapping[str, Objective]:
        return {self.name: replace(self, left=0.0, ramp=0.0), OneStreamLeftToRight.name: OneStreamLeftToRight()}

    def context(self, x0: Int[Tensor, "b l"]) -> Mapping[str, Any]:
        return {"rank": torch.arange(x0.shape[1], device=x0.device).expand_as(x0)}

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """−log p of each free token given those before it, in the order of the noise: the chain rule."""
        x0, first = clean.x0, torch.zeros(1, dtype=torch.long, device=clean.x0.device)
        rank = reading_ranks(
            clean.noise.u, clean.noise.t < self.share(clean.state), (~clean.free).index_fill(1, first, True)
        )
        rows, sigma = rows_where(clean.free.index_fill(1, first, False)), torch.zeros(len(x0), device=x0.device)
        logits = network(x0, sigma, rows, rank=rank)
        nats = spread(row_nats(logits, x0.flatten()[rows], mask=clean.mask), rows, x0)
        return Nats(nats, nats)


@dataclass(frozen=True)
class OneStreamLeftToRight(LeftToRightLikelihood, OneStream):
    """The exact likelihood of writing from left to right with the same network."""

    facts: ClassVar[Facts] = Facts(gives=GIVES, exact=True, asked=1.0)
