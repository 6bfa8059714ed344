"""The absorbing kernel: a token becomes the mask and stays it. [D3PM, MDLM]

q(x_t | x_0) = α_t 1[x_t = x_0] + (1 − α_t) 1[x_t = m]
p(x_s | x_t = m) ∝ (α_s − α_t) p_v for a token v,  1 − α_s + α_s p_m for the mask; a visible token stays
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.corruption import hide
from unmask.diffusion.kernel import KERNELS, Kernel, KernelStep, staying
from unmask.diffusion.reverse import reveal_chance
from unmask.diffusion.rows import pick
from unmask.diffusion.schedule import Level, LogLinear, Schedule, complete


def absorbing_log_step(
    log_p: Float[Tensor, "n v"], x_t: Int[Tensor, " n"], s: Level, t: Level, *, mask: int
) -> Float[Tensor, "n v"]:
    """log p(x_s | x_t): the posterior with the network's prediction in place of x_0. [MDLM eq. 5, 7; D3PM]

    For reading and for tests of masked samplers, which draw *where* first and never build this tensor.
    """
    p_mask = log_p[:, mask].exp()
    norm = (t.hidden + t.alpha * p_mask).to(log_p)
    shown = log_p + (reveal_chance(s, t) * t.hidden).to(log_p).log()[:, None] - norm.log()[:, None]
    stays = (s.hidden + s.alpha * p_mask).to(log_p).log() - norm.log()
    hidden = shown.index_copy(-1, torch.tensor([mask], device=x_t.device), stays[:, None])
    return torch.where((x_t == mask)[:, None], hidden, staying(x_t, log_p))


def kl_of_step(
    log_p_true: Float[Tensor, " n"], p_mask: Float[Tensor, " n"], s: Level, t: Level
) -> Float[Tensor, " n"]:
    """KL(q(x_s | x_t = m, x_0) || p(x_s | x_t = m)), with p = q(x_t | x_s) q(x_s | x_θ)/q(x_t | x_θ). [D3PM]

    = r (A − log p_true) + (1 − r)(A − B): r the reveal probability, A = log(1 + p_m α_t/(1 − α_t)), B the same at s.
    At s = 0 the second term vanishes (1 − r = 0, and x log x → 0), though B alone would be infinite.
    """
    r = reveal_chance(s, t)
    a = torch.log1p(p_mask * t.alpha / t.hidden)
    b = torch.log1p(p_mask * s.alpha / torch.where(s.hidden > 0, s.hidden, 1.0))
    return r * (a - log_p_true) + (1 - r) * (a - b)


@KERNELS.register("absorbing", "tokens become the mask")
@dataclass(frozen=True)
class Absorbing(Kernel):
    """Tokens become the mask, all alike."""

    schedule: Schedule = LogLinear(eps=0)  # α_t, the share still visible at time t
    whole: bool = True  # stretched to run from no mask to all; False: the schedule's own range

    def level(self, t: Float[Tensor, "*b"]) -> Level:
        return complete(self.schedule, t) if self.whole else self.schedule.at(t)

    def sigma(self, t: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return self.schedule.at(t).sigma

    def prior(self, u: Float[Tensor, "*shape"], *, mask: int) -> Int[Tensor, "*shape"]:
        return torch.full_like(u, mask, dtype=torch.long)

    def forward(self, clean: CleanRows, t: Float[Tensor, " b"]) -> Int[Tensor, "b l"]:
        return hide(clean.x0, self.level(t).hidden, clean.noise.u, mask=clean.mask, frozen=clean.frozen)

    def log_step(self, log_p: Float[Tensor, "n v"], step: KernelStep) -> Float[Tensor, "n v"]:
        return absorbing_log_step(log_p, step.x_t, self.level(step.s), self.level(step.t), mask=step.mask)

    def kl(self, log_p: Float[Tensor, "n v"], x0: Int[Tensor, " n"], step: KernelStep) -> Float[Tensor, " n"]:
        kl = kl_of_step(pick(log_p, x0), log_p[:, step.mask].exp(), self.level(step.s), self.level(step.t))
        return torch.where(step.x_t == step.mask, kl, 0.0)
