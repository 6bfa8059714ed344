"""SEDD with an absorbing mask: the network estimates ratios of probabilities, trained by score entropy."""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.corruption import check_clean, hide
from unmask.diffusion.rows import rows_where, spread
from unmask.diffusion.schedule import Level, LogLinear, Schedule
from unmask.errors import UserError
from unmask.shapes import Network


def row_log_scores(logits: Float[Tensor, "n v"], sigma: Float[Tensor, " n"], *, mask: int) -> Float[Tensor, "n v"]:
    """log s_y = logit_y − log(e^σ − 1) − log(v − 1) at hidden positions; the mask against itself is 0. [SEDD]"""
    if not bool((sigma > 0).all()):
        raise UserError("SEDD's scores need a noise level σ > 0; saw 0. Is time conditioning switched off?")
    scores = logits - torch.log(torch.expm1(sigma))[:, None] - math.log(logits.shape[-1] - 1)
    return scores.index_fill(-1, torch.tensor([mask], device=logits.device), 0.0)


def score_entropy(
    log_s: Float[Tensor, "n v"], true: Int[Tensor, " n"], level: Level, *, mask: int
) -> Float[Tensor, " n"]:
    """σ' (Σ_{y≠m} s_y − r log s_x + r (log r − 1)) with r = 1/(e^σ − 1): zero for the true ratios. [SEDD]"""
    r = level.alpha / level.hidden  # 1/(e^σ − 1) = α/(1 − α)
    total = log_s.exp().index_fill(-1, torch.tensor([mask], device=log_s.device), 0.0).sum(-1)
    log_s_true = log_s.gather(-1, true[:, None]).squeeze(-1)
    return level.rate * (total - r * log_s_true + r * (torch.log(r) - 1))


@dataclass(frozen=True)
class SEDD:
    """The SEDD objective: it needs a network with time conditioning, because its scores depend on σ."""

    schedule: Schedule = field(default_factory=LogLinear)  # α_t; must stay above 0, where scores vanish

    def nats(
        self,
        network: Network,
        x0: Int[Tensor, "b l"],
        *,
        t: Float[Tensor, " b"],
        u: Float[Tensor, "b l"],
        mask: int,
        frozen: Bool[Tensor, "b l"] | None = None,
    ) -> Float[Tensor, "b l"]:
        """Nats per token at times t > 0, with tokens hidden where the uniforms u say so."""
        check_clean(x0, mask=mask)
        level = self.schedule.at(t)
        x_t = hide(x0, level.hidden, u, mask=mask, frozen=frozen)
        rows = rows_where(x_t == mask)
        at_rows = level.take(rows // x0.shape[1])
        log_s = row_log_scores(network(x_t, level.sigma, rows), at_rows.sigma, mask=mask)
        return spread(score_entropy(log_s, x0.flatten()[rows], at_rows, mask=mask), rows, x0)
