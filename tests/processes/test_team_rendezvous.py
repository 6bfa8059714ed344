from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from unmask.errors import UserError
from unmask.processes.team import meet

SOON = timedelta(seconds=120)


def met(table, world):
    with ThreadPoolExecutor(world) as pool:
        came = [pool.submit(meet, table, rank=rank, world=world, within=SOON) for rank in reversed(range(world))]
        return [each.result() for each in came]


def test_processes_of_one_start_share_a_corner_and_those_of_the_next_another():
    table = HashStore()
    first = met(table, 3)
    first[0].set("address", "old")
    assert first[2].get("address") == b"old"
    second = met(table, 3)
    assert not any(corner.check(["address"]) for corner in second)


def test_a_process_that_died_before_the_others_came_is_not_counted():
    table = HashStore()
    table.set("hello-1", "the dead")
    with pytest.raises(UserError, match="1 of 2 processes did not come"):
        meet(table, rank=0, world=2, within=timedelta(seconds=0.3))
    assert len(met(table, 2)) == 2
