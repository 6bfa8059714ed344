"""The reverse process of masks, x_s given x_t for s < t: how likely a mask is revealed, and SEDD's ratios."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.diffusion.schedule import Level
from unmask.errors import UserError


def reveal_chance(s: Level, t: Level) -> Float[Tensor, "*b"]:
    """(α_s − α_t)/(1 − α_t): the probability that a token hidden at t is visible at s < t. [MDLM]"""
    if not bool((s.hidden <= t.hidden).all()):
        raise UserError("the reverse process runs towards clean text: s must not be later than t.")
    return (t.hidden - s.hidden) / t.hidden


def row_log_scores(logits: Float[Tensor, "n v"], sigma: Float[Tensor, " n"], *, mask: int) -> Float[Tensor, "n v"]:
    """log s_y = logit_y − log(e^σ − 1) − log(v − 1) at hidden positions; 0 for the mask itself. [SEDD]"""
    if not bool((sigma > 0).all()):
        raise UserError("SEDD's scores need a noise level σ > 0; saw 0. Is time conditioning switched off?")
    scores = logits - torch.log(torch.expm1(sigma))[:, None] - math.log(logits.shape[-1] - 1)
    return scores.index_fill(-1, torch.tensor([mask], device=logits.device), 0.0)
