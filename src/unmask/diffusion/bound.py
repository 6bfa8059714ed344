"""The exact bound on −log p(x), by enumerating every mask of a short row.

In continuous time the bound is ∫ E[ce]/u du over the hidden share u, whatever the schedule. Integrating over u gives
a sum over numbers of masks: Σ_k (1/k) E_{|M| = k}[ce(x, M)]. It is also the mean over all orders of revealing.
"""

from itertools import combinations
from math import comb

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.corruption import check_clean
from unmask.diffusion.mdlm import cross_entropy
from unmask.diffusion.reverse import reveal_chance
from unmask.diffusion.schedule import Schedule, complete
from unmask.diffusion.times import grid
from unmask.errors import UserError
from unmask.shapes import Network

LONGEST = 12  # tokens: 2^12 masks is the most that `exact_bound` enumerates


def every_mask(length: int) -> Bool[Tensor, "masks l"]:
    """All 2^l − 1 masks that hide at least one of l tokens, fewest hidden tokens first."""
    if not 1 <= length <= LONGEST:
        raise UserError(f"masks can be enumerated for 1 to {LONGEST} tokens; saw {length}.")
    chosen = [c for k in range(1, length + 1) for c in combinations(range(length), k)]
    return torch.stack([torch.tensor([i in c for i in range(length)]) for c in chosen])


def masked_losses(network: Network, x0: Int[Tensor, " l"], *, mask: int) -> Float[Tensor, " masks"]:
    """ce(x, M): the summed cross-entropy of the hidden tokens, for every mask M of one row."""
    masks = every_mask(len(x0)).to(x0.device)
    x = x0.expand(len(masks), -1)
    nats = cross_entropy(network, x, torch.where(masks, mask, x), torch.zeros(len(x), device=x0.device), mask=mask)
    return nats.sum(1)


def exact_bound(
    network: Network,
    x0: Int[Tensor, " l"],
    *,
    mask: int,
    schedule: Schedule | None = None,
    steps: int | None = None,
) -> Float[Tensor, ""]:
    """The bound of one short row in nats, without Monte Carlo error: the sum over all its masks.

    In continuous time (steps = None) every schedule gives the same value. With T steps of a schedule it is
    Σ_i (α_s − α_t)/(1 − α_t) E[ce], the first step included, with α from 1 to 0 (`schedule.complete`).
    """
    check_clean(x0[None], mask=mask)
    losses = masked_losses(network, x0, mask=mask)
    length, k = len(x0), every_mask(len(x0)).sum(1).to(x0.device)
    if steps is None:
        share = torch.tensor([1 / (j * comb(length, j)) for j in range(1, length + 1)], dtype=losses.dtype)
        return (share.to(losses.device)[k - 1] * losses).sum()
    if schedule is None:
        raise UserError("a bound with T steps depends on the schedule: give one.")
    times = grid(steps).to(losses)
    t, s = complete(schedule, times[:-1]), complete(schedule, times[1:])
    hidden, visible = t.hidden[:, None], t.alpha[:, None]
    chance = hidden**k * visible ** (length - k)  # (steps, masks): the probability of each mask at each step
    return (reveal_chance(s, t)[:, None] * chance * losses).sum()
