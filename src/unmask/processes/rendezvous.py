"""Rendezvous: how the processes of one start find each other.

torchrun keeps one key-value store per run. After a restart it still holds the entries of the dead processes: old
addresses, old answers. So every process registers under a new unique name, and rank 0 assigns a new prefix of the
store to the processes that are alive.
"""

import time
from datetime import timedelta
from uuid import uuid4

from torch.distributed.distributed_c10d import PrefixStore, Store

from unmask.errors import UserError

PAUSE = 0.05  # seconds between two polls


def meet(table: Store, *, rank: int, world: int, within: timedelta) -> Store:
    """A prefix of the store that the processes of this start share, once all of them have joined."""
    corner = host(table, world=world, within=within) if rank == 0 else guest(table, rank=rank, within=within)
    corner.wait(["all"], within)
    return corner


def guest(table: Store, *, rank: int, within: timedelta) -> Store:
    """Register under a unique name, and wait for the answer to that name."""
    name = uuid4().hex
    table.set(f"hello-{rank}", name)
    table.wait([f"welcome-{name}"], within)
    corner = PrefixStore(table.get(f"welcome-{name}").decode(), table)
    corner.set(f"here-{rank}", "")
    return corner


def host(table: Store, *, world: int, within: timedelta) -> Store:
    """Answer every registration, those of dead processes included, until all processes have joined."""
    name = uuid4().hex
    corner = PrefixStore(name, table)
    missing = list(range(1, world))
    end = time.monotonic() + within.total_seconds()
    while missing:
        if time.monotonic() > end:
            raise UserError(
                f"{len(missing)} of {world} processes did not come within {within.total_seconds():.0f} seconds "
                f"(rank {missing[0]} first): look for their errors, or for a machine that cannot be reached."
            )
        for rank in missing:
            if table.check([f"hello-{rank}"]):
                table.set(f"welcome-{table.get(f'hello-{rank}').decode()}", name)
        missing = [rank for rank in missing if not corner.check([f"here-{rank}"])]
        time.sleep(PAUSE)
    corner.set("all", "")
    return corner
