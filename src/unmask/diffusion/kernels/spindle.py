"""The spindle kernel: tokens become the mask, each id by a level of its own, so that frequent ones stay longer.

    k_{t,v} = clip(1 − t + λ sin(πt) f_v, 0, 1)        the probability that the token v is still visible at t
    r_v = (k_{s,v} − k_{t,v})/(1 − k_{t,v})            the probability that v, hidden at t, is visible at s
    p(x_s = v | x_t = m) = p_v r_v,   p(x_s = m | x_t = m) = Σ_v p_v (1 − r_v)

[He et al. 2022: DiffusionBERT]
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.kernel import KERNELS, Kernel, KernelStep, staying
from unmask.diffusion.rows import pick
from unmask.diffusion.schedule import LogLinear, shown_sigma
from unmask.errors import UserError
from unmask.registry import derived

MOST = 1 / math.pi  # with a larger λ a token could become visible again


def visible_chance(t: Float[Tensor, "*b"], centred: Float[Tensor, "*b"], *, strength: float) -> Float[Tensor, "*b"]:
    """k: the chance that a token is still visible at t; all are at t = 0, none at t = 1. [DiffusionBERT]"""
    k = (1 - t + strength * torch.sin(math.pi * t) * centred).clamp(0, 1)
    return torch.where(t <= 0, 1.0, torch.where(t >= 1, 0.0, k))


def spindle_reveal_chance(k_s: Float[Tensor, "*b"], k_t: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """r = (k_s − k_t)/(1 − k_t): the chance that a token hidden at t is visible at s < t; a visible one never is."""
    return ((k_s - k_t) / (1 - k_t).clamp(min=1e-12)).clamp(0, 1)


def kl_of_spindle_step(
    log_p: Float[Tensor, "n v"], true: Int[Tensor, " n"], r: Float[Tensor, "n v"]
) -> Float[Tensor, " n"]:
    """−r_w log p_w + (1 − r_w) log[(1 − r_w)/Σ_v p_v (1 − r_v)] at hidden positions. `log_p` is −∞ at the mask."""
    r_true, log_p_true = pick(r, true), pick(log_p, true)
    stays = (log_p.exp() * (1 - r)).sum(-1).clamp(min=1e-30)  # in the last step nothing stays hidden
    hidden = torch.xlogy(1 - r_true, 1 - r_true) - torch.xlogy(1 - r_true, stays)
    return hidden - r_true * log_p_true


@KERNELS.register("spindle", "tokens become the mask, frequent ones later")
@dataclass(frozen=True)
class Spindle(Kernel):
    """Tokens become the mask, each id by its own level."""

    strength: float = 0.3  # λ of the schedule; 0: every token alike
    shift: Float[Tensor, " v"] | None = derived(None, compare=False)  # f_v: by how much each id is moved; None: alike

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= MOST:
            raise UserError(
                f"strength must lie from 0 to 1/π = {MOST:.3f}, so that no hidden token becomes visible again as "
                f"time goes on; saw {self.strength}."
            )

    def sigma(self, t: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return shown_sigma(LogLinear(), t)

    def prior(self, u: Float[Tensor, "*shape"], *, mask: int) -> Int[Tensor, "*shape"]:
        return torch.full_like(u, mask, dtype=torch.long)

    def forward(self, clean: CleanRows, t: Float[Tensor, " b"]) -> Int[Tensor, "b l"]:
        x0, u = clean.x0, clean.noise.u
        shift = torch.zeros_like(u) if self.shift is None else self.shift.to(t)[x0]
        chosen = u < 1 - visible_chance(t[:, None].expand(x0.shape), shift, strength=self.strength)
        return torch.where(chosen & clean.free, clean.mask, x0)

    def reveals(self, s: Float[Tensor, " n"], t: Float[Tensor, " n"], *, vocab: int) -> Float[Tensor, "n v"]:
        shift = t.new_zeros(vocab) if self.shift is None else self.shift.to(t)
        k_s, k_t = (
            visible_chance(*torch.broadcast_tensors(one[:, None], shift), strength=self.strength) for one in (s, t)
        )
        return spindle_reveal_chance(k_s, k_t)

    def log_step(self, log_p: Float[Tensor, "n v"], step: KernelStep) -> Float[Tensor, "n v"]:
        x_t, mask = step.x_t, step.mask
        r = self.reveals(step.s, step.t, vocab=log_p.shape[-1]).to(log_p)
        stays = (log_p.exp() * (1 - r)).sum(-1).log()
        hidden = (log_p + r.log()).index_copy(-1, torch.tensor([mask], device=x_t.device), stays[:, None])
        return torch.where((x_t == mask)[:, None], hidden, staying(x_t, log_p))

    def kl(self, log_p: Float[Tensor, "n v"], x0: Int[Tensor, " n"], step: KernelStep) -> Float[Tensor, " n"]:
        r = self.reveals(step.s, step.t, vocab=log_p.shape[-1]).to(log_p)
        return torch.where(step.x_t == step.mask, kl_of_spindle_step(log_p, x0, r), 0.0)
