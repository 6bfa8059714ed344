"""The autoregressive baseline: predicts each token from those before it; an exact likelihood, not a bound."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.rows import check_mask, row_nats, rows_where, spread
from unmask.errors import UserError
from unmask.shapes import Network, RowLogits, Tokens


@OBJECTIVES.register("ar", "next-token prediction, the autoregressive baseline")
@dataclass(frozen=True)
class Autoregressive(Objective):
    """Next-token prediction. The first token of a row is given and adds nothing to the loss."""

    facts: ClassVar[Facts] = Facts(
        gives=frozenset({"next token"}),
        exact=True,
        infills=False,
        asked=1.0,
        sampler="autoregressive",
        optimizer="muon",
    )
    means: ClassVar[str] = "exact: -log p of each token after those before it"

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """Nats per token, at the position of the predicted token; there is no noise.

        The network's logits at position i predict the token at i, and must depend only on tokens before i (a causal
        network whose spec has `reads_before`).
        """
        x0 = clean.x0
        if x0.shape[1] < 2:
            raise UserError(f"an autoregressive loss needs rows of at least two tokens; saw {x0.shape[1]}.")
        rows = rows_where(clean.free.index_fill(1, torch.tensor([0], device=x0.device), False))
        logits = network(x0, torch.zeros(len(x0), device=x0.device), rows)
        nats = spread(row_nats(logits, x0.flatten()[rows], mask=clean.mask), rows, x0)
        return Nats(nats, nats)

    def log_probs(self, logits: RowLogits, x_t: Tokens, *, mask: int) -> RowLogits:
        """log p of the next token at each position; the mask has the logit −1000 as in the published baseline."""
        check_mask(mask, logits.shape[-1])
        return logits.index_fill(-1, torch.tensor([mask], device=logits.device), -1000.0).log_softmax(-1)
