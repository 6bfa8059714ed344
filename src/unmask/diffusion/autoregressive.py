"""The autoregressive baseline: each token from those before it, an exact likelihood and not a bound."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.corruption import check_clean
from unmask.diffusion.rows import forbid, row_nats, rows_where, spread
from unmask.errors import UserError
from unmask.shapes import Network


def row_log_probs(logits: Float[Tensor, "n v"], *, mask: int) -> Float[Tensor, "n v"]:
    """log p(next token | tokens so far); the mask is never predicted."""
    return forbid(logits, mask).log_softmax(-1)


@dataclass(frozen=True)
class Autoregressive:
    """Next-token prediction. The first token of a row is given and costs nothing."""

    def nats(
        self,
        network: Network,
        x0: Int[Tensor, "b l"],
        *,
        t: Float[Tensor, " b"] | None = None,
        u: Float[Tensor, "b l"] | None = None,
        mask: int,
        frozen: Bool[Tensor, "b l"] | None = None,
    ) -> Float[Tensor, "b l"]:
        """Nats per token, at the position of the token that is predicted; t and u are not needed.

        The network is asked at position i for the token at i, and must answer from what stands before i alone
        (`Architecture(causal=True, reads_before=True)`).
        """
        check_clean(x0, mask=mask)
        if x0.shape[1] < 2:
            raise UserError(f"an autoregressive loss needs rows of at least two tokens; saw {x0.shape[1]}.")
        wanted = torch.ones_like(x0, dtype=torch.bool) if frozen is None else ~frozen
        rows = rows_where(wanted.index_fill(1, torch.tensor([0], device=x0.device), False))
        logits = network(x0, torch.zeros(len(x0), device=x0.device), rows)
        return spread(row_nats(logits, x0.flatten()[rows], mask=mask), rows, x0)
