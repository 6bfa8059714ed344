"""The bound on held-out text, with its standard error."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unmask.diffusion.objective import Objective
from unmask.model.denoiser import Denoiser
from unmask.processes.team import Alone, Team
from unmask.text.row import Rows
from unmask.training import noise
from unmask.training.loop import VALID


@dataclass(frozen=True)
class Validation:
    """Nats per token, with the standard error over rows."""

    bound: float
    error: float


@torch.no_grad()
def validate(
    denoiser: Denoiser,
    batches: Sequence[Rows],
    objective: Objective,
    *,
    mask: int,
    seed: int,
    team: Team = Alone(),
) -> Validation:
    """The bound over some batches; the same seed hides the same tokens, so that two steps are comparable."""
    objective = objective.precise()
    sums = torch.zeros(5, dtype=torch.float64, device=team.device)
    denoiser.eval()
    carries, memory = denoiser.backbone.spec.carries, None
    for mine in range(0, len(batches)) if carries else range(team.rank, len(batches) + team.rank, team.world):
        # All processes take part in each forward pass of a sharded network: one without a batch repeats one. With a
        # memory from batch to batch every process goes through all of them, and counts its share.
        number = min(mine, len(batches) - 1)
        rows = batches[number]
        x0, real = rows.tokens.to(team.device), rows.real.to(team.device)
        frozen, lengths = (None if one is None else one.to(team.device) for one in (rows.frozen, rows.lengths))
        drawn = noise.draw(*x0.shape, seed=seed, step=number, use=VALID).to(x0.device)
        nats, memory = denoiser(
            x0,
            drawn,
            mask=mask,
            objective=objective,
            frozen=frozen,
            lengths=lengths,
            memory=None if rows.begins else memory,
        )
        n = nats.bound.sum(1).double()
        c = torch.stack([objective.counted(row[None]) for row in real]).double()
        if mine == number and (not carries or number % team.world == team.rank):
            sums += torch.stack((n.sum(), c.sum(), (n * n).sum(), (n * c).sum(), (c * c).sum()))
    n, c, nn, nc, cc = team.sum(sums)
    mean = n / c
    return Validation(float(mean), float((nn - 2 * mean * nc + mean * mean * cc).clamp(min=0).sqrt() / c))
