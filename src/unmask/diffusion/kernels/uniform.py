"""The uniform kernel: tokens become random tokens; there is no mask. [D3PM]

q(x_t | x_s) = α_{t|s} 1[x_t = x_s] + (1 − α_{t|s})/K        K: ids without the mask, α_{t|s} = α_t/α_s
p(x_s | x_t) ∝ q(x_t | x_s) Σ_v q(x_s | v) p_v

The network's best p_v is then what the other tokens say of a token: what it says itself comes with q(x_t | x_s). The
step to clean text is the same formula at s = 0, p(x_0 | x_t) ∝ q(x_t | x_0) p_{x_0} (`bayes`), or p itself, as in
D3PM (`austin`): then the network must say something else in that step than in all others.

In continuous time [UDLM, Duo] a token i becomes j on the way back at the rate −α'/(Kα) · x̄_j/x̄_i, x̄ = K α p + 1 − α,
and the bound is the integral over t of the KL between the rates of the clean token and those of the network:
Σ_{j≠i} r_j log(r_j/r'_j) − r_j + r'_j.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.kernel import KERNELS, Kernel, KernelStep
from unmask.diffusion.rows import forbid, pick
from unmask.diffusion.schedule import Level, LogLinear, Schedule, complete
from unmask.registry import derived

First = Literal["bayes", "austin"]


def random_ids(u: Float[Tensor, "*shape"], *, vocab: int, mask: int) -> Int[Tensor, "*shape"]:
    """Ids other than the mask, each as likely, by uniforms in [0, 1)."""
    place = (u.double() * (vocab - 1)).long().clamp(max=vocab - 2)
    return place + (place >= mask)


def replace_tokens(
    x0: Int[Tensor, "b l"],
    hidden: Float[Tensor, " b"],
    u: Float[Tensor, "b l"],
    *,
    vocab: int,
    mask: int,
) -> Int[Tensor, "b l"]:
    """x_t: a token is replaced where its uniform is below 1 − α_t; the uniform, divided by it, says by which."""
    chosen = u < hidden[:, None]
    drawn = random_ids(torch.where(chosen, u / hidden[:, None].clamp(min=1e-300), 0.0), vocab=vocab, mask=mask)
    return torch.where(chosen, drawn, x0)


def uniform_log_step(
    log_p: Float[Tensor, "n v"], x_t: Int[Tensor, " n"], s: Level, t: Level, *, mask: int
) -> Float[Tensor, "n v"]:
    """log p(x_s | x_t) if the other tokens give x_0 the log-probabilities `log_p`, which are −∞ at the mask."""
    letters = log_p.shape[-1] - 1
    alpha, hidden = s.alpha[:, None].to(log_p), s.hidden[:, None].to(log_p)
    moved = ((t.hidden - s.hidden) / s.alpha)[:, None].to(log_p)  # 1 − α_{t|s}
    few = torch.finfo(log_p.dtype).tiny  # at s = 0, where this is not used, its gradient must still be a number
    mixed = torch.logaddexp(alpha.log() + log_p, (hidden / letters).clamp(min=few).log().expand_as(log_p))
    earlier = torch.where(hidden > 0, mixed, log_p)
    here = torch.zeros_like(log_p, dtype=torch.bool).scatter(-1, x_t[:, None], True)
    to_x_t = torch.where(here, 1 - moved + moved / letters, moved / letters).log()
    weights = forbid(earlier + to_x_t, mask)
    return weights - weights.logsumexp(-1, keepdim=True)


def rate_nats(
    log_p: Float[Tensor, "n v"], x0: Int[Tensor, " n"], x_t: Int[Tensor, " n"], level: Level
) -> Float[Tensor, " n"]:
    """What a token pays per unit of time; `log_p` are −∞ at the mask.

    With a = K α/(1 − α) and y_j = log(1 + a p_j) the sums over j are a few numbers per token and Σ y_j, which stay
    accurate where a is nearly 0 or very large.
    """
    k = log_p.shape[-1] - 1
    alpha, hidden = level.alpha.double().clamp(min=1e-12), level.hidden.double().clamp(min=1e-9)
    a = k * alpha / hidden
    y = torch.log1p(a.to(log_p)[:, None] * log_p.exp())
    total, here, true = y.sum(-1).double(), pick(y, x_t).double(), pick(y, x0).double()
    # Σ r log(r/r') − r, in units of −α'/(Kα): the clean token lies elsewhere, or here
    moved = (1 + a) * (a.log1p() - true + here) - (total - here - true) + (k - 2) * here - (k - 1 + a)
    same = ((k - 1) * (here - a.log1p() - 1) - (total - here)) / (1 + a)
    rates = (k + a) * (-here).exp() - 1  # Σ r'
    return (level.slope / (k * alpha) * (torch.where(x_t == x0, same, moved) + rates)).to(log_p.dtype)


@KERNELS.register("uniform", "tokens become random tokens")
@dataclass(frozen=True)
class Uniform(Kernel):
    """Tokens become any token but the mask, all alike."""

    schedule: Schedule = LogLinear(eps=0)  # α_t, the share that is not replaced; stretched to end at 0
    vocab: int = derived(2)  # ids of the network, the mask included
    first: First = "bayes"  # the step to clean text: bayes, as all others, or austin: the network's p itself

    def level(self, t: Float[Tensor, "*b"]) -> Level:
        return complete(self.schedule, t)

    def sigma(self, t: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return self.schedule.at(t).sigma

    def prior(self, u: Float[Tensor, "*shape"], *, mask: int) -> Int[Tensor, "*shape"]:
        return random_ids(u, vocab=self.vocab, mask=mask)

    def forward(self, clean: CleanRows, t: Float[Tensor, " b"]) -> Int[Tensor, "b l"]:
        drawn = replace_tokens(clean.x0, self.level(t).hidden, clean.noise.u, vocab=self.vocab, mask=clean.mask)
        return drawn if clean.frozen is None else torch.where(clean.frozen, clean.x0, drawn)

    def log_step(self, log_p: Float[Tensor, "n v"], step: KernelStep) -> Float[Tensor, "n v"]:
        s, t = self.level(step.s), self.level(step.t)
        earlier = uniform_log_step(log_p, step.x_t, s, t, mask=step.mask)
        return earlier if self.first == "bayes" else torch.where(s.hidden[:, None] > 0, earlier, log_p)
