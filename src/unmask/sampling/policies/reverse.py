"""Reverse steps in which *where* depends on the network: D3PM's own, and SEDD's analytic (Tweedie) step.

Both split into "is this position revealed in this step", a Bernoulli draw, and "which token", the softmax over all
ids but the mask. Every step takes a network call, because the logits decide whether anything is revealed.

The first part is the process and reads the network's own logits. A constraint, a banned token or a penalty changes
the second part alone: otherwise p_mask, or the sum of the scores, would change with what is allowed, and positions
would be revealed too early or only in the last call.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.reverse import row_log_scores
from unmask.diffusion.rows import forbid
from unmask.diffusion.schedule import Level, LogLinear, Schedule
from unmask.diffusion.times import grid
from unmask.random import WHERE
from unmask.registry import derived
from unmask.sampling.policy import POLICIES, Chosen, Draw, Flat, GridPolicy, Logits, PolicyView


def d3pm_reveals(p_mask: Float[Tensor, " n"], s: Level, t: Level) -> Float[Tensor, " n"]:
    """(α_s − α_t)(1 − p_m)/(1 − α_t + α_t p_m): the reveal probability if the mask has probability p_m. [D3PM]

    From p(x_s | x_t = m) = q(x_t = m | x_s) q(x_s | x_θ)/q(x_t = m | x_θ). For p_m = 0 it is MDLM's.
    """
    return (t.hidden - s.hidden) * (1 - p_mask) / (t.hidden + t.alpha * p_mask)


def tweedie_reveals(
    total: Float[Tensor, " n"], sigma_s: Float[Tensor, " n"], sigma_t: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """(e^{σ_t − σ_s} − 1) Σ_{y≠m} s_y, at most 1: the reveal probability of the analytic step. [SEDD]

    The staggered score times the transition: y has weight s_y (e^Δσ − 1), the mask 1 minus their sum.
    """
    return (torch.expm1(sigma_t - sigma_s) * total).clamp(max=1)


def level_at(schedule: Schedule, times: Float[Tensor, " steps"], clock: Int[Tensor, " b"]) -> Level:
    return schedule.at(times.to(clock.device)[clock.clamp(max=len(times) - 1)])


def lots(view: PolicyView, rows: Int[Tensor, " n"], chance: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """True with the given probabilities, by each position's own random numbers."""
    row, column = rows // view.hidden.shape[1], rows % view.hidden.shape[1]
    return view.dice.at(row, column, view.clock[row], WHERE) < chance


@POLICIES.register("d3pm", "D3PM's own reverse step")
@dataclass(frozen=True)
class D3PMReverse(GridPolicy):
    """T steps of D3PM's p(x_s | x_t), then one call for what is still hidden."""

    needs: ClassVar[frozenset[str]] = frozenset({"masks", "mass on the mask"})
    unshaped: ClassVar[bool] = True

    steps: int = 1000  # T
    schedule: Schedule = derived(LogLinear(eps=0))

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        return view.hidden, level_at(self.schedule, grid(self.steps), view.clock).sigma.float()

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        clock = view.clock[rows // view.hidden.shape[1]]
        t, s = (level_at(self.schedule, grid(self.steps), clock + i) for i in (0, 1))
        p_mask = logits.double().log_softmax(-1)[:, view.mask].exp()
        return lots(view, rows, d3pm_reveals(p_mask, s, t)) | (clock >= self.steps), view.memory


@POLICIES.register("analytic", "SEDD's analytic step")
@dataclass(frozen=True)
class Analytic(GridPolicy):
    """T analytic steps down to a last time, then one call that reveals what is still hidden. [SEDD]"""

    needs: ClassVar[frozenset[str]] = frozenset({"masks", "scores"})
    unshaped: ClassVar[bool] = True

    steps: int = 1000  # T
    schedule: Schedule = derived(LogLinear())
    last: float = 1e-5  # where the grid ends

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        return view.hidden, level_at(self.schedule, self.times, view.clock).sigma.float()

    @property
    def times(self) -> Float[Tensor, " steps"]:
        return grid(self.steps, last=self.last)

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        clock = view.clock[rows // view.hidden.shape[1]]
        t, s = (level_at(self.schedule, self.times, clock + i) for i in (0, 1))
        log_scores = row_log_scores(logits.double(), t.sigma, mask=view.mask)
        total = forbid(log_scores, view.mask).logsumexp(-1).exp()
        return lots(view, rows, tweedie_reveals(total, s.sigma, t.sigma)) | (clock >= self.steps), view.memory
