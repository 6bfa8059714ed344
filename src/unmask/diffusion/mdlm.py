"""MDLM: SUBS, never predict the mask, copy what is visible; the bound is then a mean of masked-LM losses.

`nats` gives nats per token and never averages: the sum over a row is an unbiased estimate of the row's bound.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion import d3pm
from unmask.diffusion.corruption import check_clean, hide
from unmask.diffusion.reverse import reveal_chance
from unmask.diffusion.rows import forbid, row_nats, rows_where, spread
from unmask.diffusion.schedule import LogLinear, Schedule
from unmask.diffusion.times import check_total, steps
from unmask.errors import UserError
from unmask.shapes import Network


def row_log_probs(logits: Float[Tensor, "n v"], *, mask: int) -> Float[Tensor, "n v"]:
    """log p(x_0 | x_t) at hidden positions."""
    return forbid(logits, mask).log_softmax(-1)


def log_probs(logits: Float[Tensor, "b l v"], x_t: Int[Tensor, "b l"], *, mask: int) -> Float[Tensor, "b l v"]:
    """log p(x_0 | x_t) everywhere: zero-masking where hidden, carry-over where visible. For inspection."""
    copied = torch.full_like(logits, -torch.inf).scatter(-1, x_t[..., None], 0.0)
    return torch.where((x_t == mask)[..., None], forbid(logits, mask).log_softmax(-1), copied)


def cross_entropy(
    network: Network, x0: Int[Tensor, "b l"], x_t: Int[Tensor, "b l"], sigma: Float[Tensor, " b"], *, mask: int
) -> Float[Tensor, "b l"]:
    """−log p(x_0 | x_t) at hidden positions, 0 where the token is visible: the masked-LM loss, not yet weighted."""
    rows = rows_where(x_t == mask)
    return spread(row_nats(network(x_t, sigma, rows), x0.flatten()[rows], mask=mask), rows, x0)


@dataclass(frozen=True)
class MDLM:
    """The MDLM objective, with the switches of the paper's Table 8.

    steps = None is continuous time. The other two switches need discrete time: without carry-over the network must
    also name the visible tokens at t = 0; without zero-masking it may put mass on the mask.
    """

    schedule: Schedule = field(default_factory=LogLinear)  # α_t; the continuous bound does not depend on it
    steps: int | None = None  # T of the discrete process; None: continuous time
    carry_over: bool = True  # copy what is visible
    zero_masking: bool = True  # never predict the mask

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_total(self.steps)
        elif not (self.carry_over and self.zero_masking):
            raise UserError("the bound without carry-over or zero-masking is a sum over T steps; give steps.")

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
        """Nats per token at times t, with tokens hidden where the uniforms u say so; unbiased for uniform t."""
        check_clean(x0, mask=mask)
        if self.steps is None:
            level = self.schedule.at(t)
            x_t = hide(x0, level.hidden, u, mask=mask, frozen=frozen)
            # Where nothing can be hidden there is nothing to pay, though the weight is infinite there.
            weight = torch.where(level.hidden > 0, level.weight, 0.0)
            return weight[:, None] * cross_entropy(network, x0, x_t, level.sigma, mask=mask)
        # T steps, of which t picks one, from i/T to (i − 1)/T. The first, i = 1, reveals all that is left: it is the
        # reconstruction term, and leaving it out would make the result no bound.
        i = steps(t, total=self.steps)
        level, before = (self.schedule.at(j.to(t.dtype) / self.steps) for j in (i, i - 1))
        x_t = hide(x0, level.hidden, u, mask=mask, frozen=frozen)
        if self.carry_over and self.zero_masking:
            weight = self.steps * reveal_chance(before, level)
            return weight[:, None] * cross_entropy(network, x0, x_t, level.sigma, mask=mask)
        return self.steps * d3pm.step_nats(
            network, x0, x_t, before, level, mask=mask, zero_masking=self.zero_masking
        ) + (0.0 if self.carry_over else d3pm.reconstruction(network, x0, t, self.zero_masking, mask, frozen))
