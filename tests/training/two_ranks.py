"""What two processes do together, for test_many_processes.py: each runs `main([FOLDER])`.

FOLDER/one holds checkpoints of one process. Each way of sharing writes its own to FOLDER/<way>, and rank 0 writes
what was seen to FOLDER/seen.json.
"""

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from full_disk import files_at_most
from training.runs import HALF, STEPS, begun, others, save, scored, steps
from unmask.errors import UserError
from unmask.processes import sharding
from unmask.processes.team import Many, join_team
from unmask.training import state


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    seen: dict[str, Any] = {}
    for way in ("ddp", "fsdp"):
        with join_team(way, seconds=300) as team:
            assert isinstance(team, Many)
            seen[way] = {**trained(team, folder / way), "from one": resumed(team, folder / "one"), **together(team)}
            if team.rank == 0:
                (folder / "seen.json").write_text(json.dumps(seen))


def trained(team: Many, out: Path) -> dict[str, Any]:
    """Twenty steps, with a look at the averaged weights and a checkpoint after ten; then the last ten again."""
    current = begun(team)
    first = steps(current, 0, HALF, team)
    score = scored(current, team)
    folder = save(out, current, HALF, team)
    second = steps(current, HALF, STEPS, team)
    again = begun(team, seed=99)
    state.restore(folder, again)
    repeated = steps(again, HALF, STEPS, team)
    save(out, current, STEPS, team)
    kept = sum(sharding.local(p).numel() for p in current.network.parameters())
    return {
        "steps": first + second,
        "score": score,
        "others": others(team),
        "repeats": repeated == second,
        "differing": team.most(
            sum(not torch.equal(a, b) for a, b in zip(values(current), values(again), strict=True))
        ),
        "share": kept / sum(p.numel() for p in current.network.parameters()),
        "full": full_disk(team, out, current),
    }


def values(current: state.State) -> list[torch.Tensor]:
    return [sharding.local(tensor) for tensor in [*current.network.parameters(), *current.shadow]]


def full_disk(team: Many, out: Path, current: state.State) -> list[str]:
    """What each process hears when one of those that write cannot: the last, for one of them."""
    writers = team.world if team.way == "fsdp" else 1
    told = ""
    with files_at_most(20_000) if team.rank == writers - 1 else nullcontext():
        try:
            save(out, current, STEPS + 1, team)
        except UserError as error:
            told = str(error)
    return everyone(team, told)


def resumed(team: Many, out: Path) -> list[list[float]]:
    """The last ten steps from a checkpoint of one process."""
    current = begun(team, seed=99)
    state.restore(state.folder_of(out, HALF), current)
    return steps(current, HALF, STEPS, team)


def together(team: Many) -> dict[str, Any]:
    """What one rank does or knows, and the others hear of."""
    done: list[int] = []
    team.lead(lambda: done.append(team.rank))
    heard = []

    def fail() -> None:
        raise UserError("the folder holds another run")

    try:
        team.lead(fail)
    except UserError as error:
        heard = [type(error).__name__, str(error)]
    with suppress(UserError):
        team.lead(fail)
    return {
        "most": team.most(15 if team.rank == 1 else 0),
        "did": everyone(team, done),
        "heard": everyone(team, heard),
        "result": everyone(team, team.lead(lambda: 7)),
        "gathered": team.gather(torch.full((2, 1), float(team.rank))).flatten().tolist(),
    }


def everyone(team: Many, value: Any) -> list[Any]:
    found: list[Any] = [None] * team.world
    dist.all_gather_object(found, value)
    return found
