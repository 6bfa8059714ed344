"""The reverse process: the distribution of x_s given x_t, for s < t."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.schedule import Level
from unmask.errors import UserError


def reveal_chance(s: Level, t: Level) -> Float[Tensor, "*b"]:
    """(α_s − α_t)/(1 − α_t): the probability that a token hidden at t is visible at s < t. [MDLM]"""
    if not bool((s.hidden <= t.hidden).all()):
        raise UserError("the reverse process runs towards clean text: s must not be later than t.")
    return (t.hidden - s.hidden) / t.hidden


def posterior(
    x_t: Int[Tensor, "b l"], x0: Int[Tensor, "b l"], s: Level, t: Level, *, mask: int, vocab: int
) -> Float[Tensor, "b l v"]:
    """q(x_s | x_t, x_0): a visible token stays; a mask becomes x_0 with the reveal probability. [MDLM eq. 5]"""
    known = torch.nn.functional.one_hot(x0, vocab).to(t.hidden.dtype)
    return step(x_t, known, s, t, mask=mask)


def step(
    x_t: Int[Tensor, "b l"], x0_probs: Float[Tensor, "b l v"], s: Level, t: Level, *, mask: int
) -> Float[Tensor, "b l v"]:
    """p(x_s | x_t): the posterior with the network's prediction p(x_0 | x_t) in place of x_0. [MDLM eq. 7]

    For reading and for tests; samplers draw *where* first and never build this tensor.
    """
    reveal = reveal_chance(s, t)[:, None, None]
    still = torch.nn.functional.one_hot(torch.tensor(mask, device=x_t.device), x0_probs.shape[-1])
    hidden = reveal * x0_probs + (1 - reveal) * still
    visible = torch.nn.functional.one_hot(x_t, x0_probs.shape[-1]).to(hidden.dtype)
    return torch.where((x_t == mask)[..., None], hidden, visible)
