"""The bound on text that was held out, with its standard error."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from unmask.model.backbones.transformer import Transformer
from unmask.processes.team import Alone, Team
from unmask.training import noise
from unmask.training.loop import VALID, Looking, Rows
from unmask.training.loss import counted, nats
from unmask.training.settings import Objective


@dataclass(frozen=True)
class Score:
    """Nats a token, and how far chance may have moved it."""

    bound: float
    error: float  # standard error over rows


@torch.no_grad()
def validate(
    network: Transformer,
    batches: Sequence[Rows],
    objective: Objective,
    *,
    mask: int,
    seed: int,
    team: Team = Alone(),  # noqa: B008
) -> Score:
    """The bound over some batches; the same seed hides the same tokens, so that scores of two steps compare well."""
    if objective.name == "mdlm" and not network.architecture.time_conditioning:
        objective = replace(objective, times="count")  # the smallest variance
    elif objective.times != "stratified":
        objective = replace(objective, times="stratified", low=0.0)
    sums = torch.zeros(5, dtype=torch.float64, device=team.device)
    network.eval()
    for mine in range(team.rank, len(batches) + team.rank, team.world):
        # All processes take part in each pass of a sharded network: who has no batch left looks at one in vain.
        number = min(mine, len(batches) - 1)
        rows = batches[number]
        x0, real, padded = rows.tokens.to(team.device), rows.real.to(team.device), not bool(rows.real.all())
        even, u = noise.draw(*x0.shape, seed=seed, step=number, use=VALID)
        found = nats(
            Looking(network, real.sum(1) if padded else None, None),
            x0,
            noise.when(even.to(x0.device), objective),
            u.to(x0.device),
            objective,
            mask=mask,
            frozen=~real if padded else None,
        )
        n = found.bound.sum(1).double()
        c = torch.stack([counted(row[None], objective) for row in real]).double()
        if mine == number:
            sums += torch.stack((n.sum(), c.sum(), (n * n).sum(), (n * c).sum(), (c * c).sum()))
    n, c, nn, nc, cc = team.sum(sums)
    mean = n / c
    return Score(float(mean), float((nn - 2 * mean * nc + mean * mean * cc).clamp(min=0).sqrt() / c))
