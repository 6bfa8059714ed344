"""Verbs that several processes of torchrun can share; alone they do all of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist

from unmask.cli.stopping import said_once
from unmask.training.parallel import Team, joined

T = TypeVar("T")
PATIENCE = 86_400.0  # seconds that those who are done wait for the others; torchrun notices who has died


@contextmanager
def together() -> Iterator[Team]:
    """The processes that torchrun has started, or this one alone."""
    with joined("ddp", seconds=PATIENCE) as team, said_once(team):
        yield team


def collected(team: Team, mine: list[T]) -> list[T]:
    """What all processes have, at rank 0; the others get nothing."""
    if team.world == 1:
        return mine
    found: list[list[T] | None] | None = [None] * team.world if team.rank == 0 else None
    dist.gather_object(mine, found)
    return [one for some in found or [] for one in some or []]
