"""The bound on text that was held out, with its standard error."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from unmask.model.transformer import Transformer
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
def validate(network: Transformer, batches: Iterable[Rows], objective: Objective, *, mask: int, seed: int) -> Score:
    """The bound over some batches; the same seed hides the same tokens, so that scores of two steps compare well."""
    if objective.name == "mdlm" and not network.architecture.time_conditioning:
        objective = replace(objective, times="count")  # the smallest variance
    elif objective.times != "stratified":
        objective = replace(objective, times="stratified", low=0.0)
    totals, counts = [], []
    network.eval()
    for number, rows in enumerate(batches):
        x0, real, padded = rows.tokens, rows.real, not bool(rows.real.all())
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
        totals.append(found.bound.sum(1))
        counts.append(torch.stack([counted(row[None], objective) for row in real]))
    n, c = torch.cat(totals).double(), torch.cat(counts).double()
    mean = n.sum() / c.sum()
    return Score(float(mean), float((n - mean * c).square().sum().sqrt() / c.sum()))
