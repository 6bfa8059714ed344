"""D3PM with a uniform kernel: T steps in which tokens become random tokens; there is no mask. [D3PM]

    q(x_t | x_s) = α_{t|s} 1[x_t = x_s] + (1 − α_{t|s})/K        K: ids without the mask, α_{t|s} = α_t/α_s
    p(x_s | x_t) ∝ q(x_t | x_s) Σ_v q(x_s | v) p(x_0 = v | x_t)

Nothing says which tokens are noise, so every position is predicted and pays in every step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.diffusion.corruption import check_clean
from unmask.diffusion.d3pm import check_hybrid
from unmask.diffusion.mlm import Ids
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.rows import forbid, rows_where, spread
from unmask.diffusion.schedule import Level, LogLinear, Schedule, complete
from unmask.diffusion.times import Cubed, Stratified, Times, check_total, steps
from unmask.random import Noise
from unmask.shapes import Network


def random_ids(u: Float[Tensor, "*shape"], *, vocab: int, mask: int) -> Int[Tensor, "*shape"]:
    """Ids other than the mask, each as likely, by uniforms in [0, 1)."""
    place = (u.double() * (vocab - 1)).long().clamp(max=vocab - 2)
    return place + (place >= mask)


def scrambled(
    x0: Int[Tensor, "b l"],
    hidden: Float[Tensor, " b"],
    u: Float[Tensor, "b l"],
    *,
    vocab: int,
    mask: int,
    frozen: Bool[Tensor, "b l"] | None = None,
) -> Int[Tensor, "b l"]:
    """x_t: a token is replaced where its uniform is below 1 − α_t; the uniform, divided by it, says by which."""
    chosen = u < hidden[:, None]
    drawn = random_ids(torch.where(chosen, u / hidden[:, None].clamp(min=1e-300), 0.0), vocab=vocab, mask=mask)
    return torch.where(chosen if frozen is None else chosen & ~frozen, drawn, x0)


def log_step(
    log_p: Float[Tensor, "n v"], x_t: Int[Tensor, " n"], s: Level, t: Level, *, mask: int
) -> Float[Tensor, "n v"]:
    """log p(x_s | x_t) if x_0 has the log-probabilities `log_p`, which are −∞ at the mask; at s = 0 it is log_p.

    With log_p of a known x_0 this is the posterior q(x_s | x_t, x_0).
    """
    letters = log_p.shape[-1] - 1
    alpha, hidden = s.alpha[:, None].to(log_p), s.hidden[:, None].to(log_p)
    moved = ((t.hidden - s.hidden) / s.alpha)[:, None].to(log_p)  # 1 − α_{t|s}
    few = torch.finfo(log_p.dtype).tiny  # at s = 0, where this is not used, its gradient must still be a number
    earlier = torch.logaddexp(alpha.log() + log_p, (hidden / letters).clamp(min=few).log().expand_as(log_p))
    here = torch.zeros_like(log_p, dtype=torch.bool).scatter(-1, x_t[:, None], True)
    to_x_t = torch.where(here, 1 - moved + moved / letters, moved / letters).log()
    found = forbid(earlier + to_x_t, mask)
    return torch.where(hidden > 0, found - found.logsumexp(-1, keepdim=True), log_p)


def kl_of_uniform_step(
    log_p: Float[Tensor, "n v"], x0: Int[Tensor, " n"], x_t: Int[Tensor, " n"], s: Level, t: Level, *, mask: int
) -> Float[Tensor, " n"]:
    """KL(q(x_s | x_t, x_0) || p(x_s | x_t)); at s = 0 it is −log p(x_0 | x_t). [D3PM]"""
    known = torch.full_like(log_p, -torch.inf).scatter(-1, x0[:, None], 0.0)
    q, p = (log_step(one, x_t, s, t, mask=mask) for one in (known, log_p))
    return (q.exp() * torch.where(q > -torch.inf, q - p, 0.0)).sum(-1)


@OBJECTIVES.register("d3pm-uniform", "D3PM with a uniform kernel: tokens become random tokens, T steps")
@dataclass(frozen=True)
class D3PMUniform(Objective):
    """The D3PM objective with a uniform transition matrix."""

    facts: ClassVar[Facts] = Facts(
        conditionals=False, network_wants_sigma=True, asked=1.0, sampler="d3pm-uniform", process="uniform"
    )

    schedule: Schedule = LogLinear()  # α_t, the share that is not replaced; stretched to end at 0
    steps: int = 1000  # T, the number of steps
    times: Times = Stratified()  # stratified:low=0, cubed, bell:mean=0,spread=1,floor=0.2
    hybrid: float = 0.0  # λ of the hybrid loss: the KL of a step + λ · cross-entropy at all positions

    def __post_init__(self) -> None:
        check_total(self.steps)
        check_hybrid(self.hybrid)

    @property
    def means(self) -> str:
        return f"upper bound on -log p, D3PM with a uniform kernel and {self.steps} steps"

    @property
    def grid(self) -> int | None:
        return self.steps

    def precise(self) -> "D3PMUniform":
        """More draws of the first steps, where few tokens pay much: drawn evenly, T − 1 of T rows miss the first."""
        return replace(self, times=Cubed())

    def parts(self, *, vocab: int, width: int) -> dict[str, nn.Module]:
        return {"ids": Ids(vocab)}

    def nats(
        self,
        network: Network,
        x0: Int[Tensor, "b l"],
        *,
        noise: Noise,
        mask: int,
        frozen: Bool[Tensor, "b l"] | None = None,
        parts: Mapping[str, nn.Module] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Nats:
        """Nats per token: T times the KL of the step that contains t, at every position."""
        check_clean(x0, mask=mask)
        ids = None if parts is None else parts.get("ids")
        if not isinstance(ids, Ids):
            raise ValueError("random tokens are drawn from the ids of the network: give parts")
        when = self.times.at(noise.t)
        i = steps(when.t, total=self.steps)
        t, s = (j.to(when.t.dtype) / self.steps for j in (i, i - 1))
        level, before = complete(self.schedule, t), complete(self.schedule, s)
        x_t = scrambled(x0, level.hidden, noise.u, vocab=ids.vocab, mask=mask, frozen=frozen)
        rows = rows_where(torch.ones_like(x0, dtype=torch.bool) if frozen is None else ~frozen)
        logits = network(x_t, self.schedule.at(t).sigma.to(noise.t), rows)
        log_p = forbid(logits, mask).log_softmax(-1)
        of_row, true = rows // x0.shape[1], x0.flatten()[rows]
        kl = kl_of_uniform_step(log_p, true, x_t.flatten()[rows], before.take(of_row), level.take(of_row), mask=mask)
        weight = self.steps / when.density[:, None]
        bound = weight * spread(kl, rows, x0)
        if not self.hybrid:
            return Nats(bound, bound)
        ce = spread(-log_p.gather(-1, true[:, None]).squeeze(-1), rows, x0)
        return Nats(bound + self.hybrid * weight * ce, bound)
