"""How the processes of one start find each other.

torchrun keeps one table of keys and values for a run. When it starts the processes again after one has died, what the
dead wrote is still there: old addresses, old answers. So every process comes with a name nobody has used, and
rank 0 gives a fresh corner of the table to those who are there now.
"""

import time
from datetime import timedelta
from uuid import uuid4

from torch.distributed.distributed_c10d import PrefixStore, Store

from unmask.errors import UserError

PAUSE = 0.05  # seconds between two looks at who has come


def meet(table: Store, *, rank: int, world: int, within: timedelta) -> Store:
    """A corner of the table that the processes of this start share, once all of them are there."""
    corner = host(table, world=world, within=within) if rank == 0 else guest(table, rank=rank, within=within)
    corner.wait(["all"], within)
    return corner


def guest(table: Store, *, rank: int, within: timedelta) -> Store:
    """Say who is there, and wait for the answer to exactly that."""
    name = uuid4().hex
    table.set(f"hello-{rank}", name)
    table.wait([f"welcome-{name}"], within)
    corner = PrefixStore(table.get(f"welcome-{name}").decode(), table)
    corner.set(f"here-{rank}", "")
    return corner


def host(table: Store, *, world: int, within: timedelta) -> Store:
    """Answer whoever says hello, the dead included, until all have come to the corner."""
    name = uuid4().hex
    corner = PrefixStore(name, table)
    missing = list(range(1, world))
    end = time.monotonic() + within.total_seconds()
    while missing:
        if time.monotonic() > end:
            raise UserError(
                f"{len(missing)} of {world} processes did not come within {within.total_seconds():.0f} seconds "
                f"(rank {missing[0]} first): look for what stopped them, or for a machine that is not reached."
            )
        for rank in missing:
            if table.check([f"hello-{rank}"]):
                table.set(f"welcome-{table.get(f'hello-{rank}').decode()}", name)
        missing = [rank for rank in missing if not corner.check([f"here-{rank}"])]
        time.sleep(PAUSE)
    corner.set("all", "")
    return corner
