"""The loss of a batch: all four objectives through one function, nats per token and never averaged.

Two numbers come out of one pass: what is minimised, and an unbiased estimate of the bound, which is what is reported
whatever was minimised.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.corruption import check_clean, hide, hide_count
from unmask.diffusion.d3pm import D3PM
from unmask.diffusion.mdlm import cross_entropy
from unmask.diffusion.sedd import SEDD
from unmask.diffusion.times import counts
from unmask.shapes import Network
from unmask.training.noise import Times, named_schedule
from unmask.training.settings import Objective

HALF = 2.0  # half of the tokens are hidden on average: with this weight `flat` is about nats per hidden token


@dataclass(frozen=True)
class Nats:
    """Sums over a batch of rows; divide by the number of tokens of the whole step."""

    loss: Float[Tensor, "b l"]  # what is minimised
    bound: Float[Tensor, "b l"]  # an unbiased estimate of the bound, without gradient


def nats(
    network: Network,
    x0: Int[Tensor, "b l"],
    when: Times,
    u: Float[Tensor, "b l"],
    objective: Objective,
    *,
    mask: int,
    frozen: Bool[Tensor, "b l"] | None = None,
) -> Nats:
    """Nats per token of clean rows x0, looked at at some times, with tokens hidden where the uniforms u say so."""
    if objective.name == "mdlm":
        return masked(network, x0, when, u, objective, mask=mask, frozen=frozen)
    if objective.name == "ar":
        loss = Autoregressive().nats(network, x0, mask=mask, frozen=frozen)
    else:
        schedule = named_schedule(objective)
        chosen = D3PM(schedule, steps=objective.steps) if objective.name == "d3pm" else SEDD(schedule)
        loss = chosen.nats(network, x0, t=when.t, u=u, mask=mask, frozen=frozen) / when.density[:, None]
    return Nats(loss, loss.detach())


def masked(
    network: Network,
    x0: Int[Tensor, "b l"],
    when: Times,
    u: Float[Tensor, "b l"],
    objective: Objective,
    *,
    mask: int,
    frozen: Bool[Tensor, "b l"] | None,
) -> Nats:
    """MDLM in continuous time: cross-entropies of the hidden tokens, weighted for the bound, or flat."""
    check_clean(x0, mask=mask)
    if objective.times == "count":
        free = torch.full((len(x0),), x0.shape[1], device=x0.device) if frozen is None else (~frozen).sum(1)
        k = counts(when.t, free)
        x_t = hide_count(x0, k, u, mask=mask, frozen=frozen)
        sigma, weight = torch.zeros_like(when.t), free.to(u.dtype) / k
    else:
        level = named_schedule(objective).at(when.t)
        x_t = hide(x0, level.hidden, u, mask=mask, frozen=frozen)
        # Where nothing can be hidden there is nothing to pay, though the weight is infinite there.
        sigma, weight = level.sigma, torch.where(level.hidden > 0, level.weight, 0.0) / when.density
    ce = cross_entropy(network, x0, x_t, sigma, mask=mask)
    bound = weight[:, None] * ce
    return Nats(bound if objective.weight == "bound" else HALF * ce, bound.detach())


def counted(real: Bool[Tensor, "b l"], objective: Objective) -> Int[Tensor, ""]:
    """How many tokens the nats of a batch are spread over: all real ones, but for ar the first of a row is given."""
    return real[:, 1:].sum() if objective.name == "ar" else real.sum()
