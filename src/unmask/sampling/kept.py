"""What the network remembers of the rows of a canvas. Rows that are read alike are one pass, and share one memory.

A process builds a pass for every row, as if it were alone, and says where the row's memory is. Rows whose passes are
of one shape then stay together from the first call to the last; those that differ are read by themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from unmask.model.passing import Memory, Pass, stack
from unmask.sampling.process import Ask, NetworkAnswer


@dataclass(frozen=True)
class Kept:
    """A row of a memory."""

    memory: Memory
    row: int = 0
    rows: int = 1  # that share the memory


def read_together(passes: Sequence[Pass], kept: Sequence[Kept | None]) -> tuple[Pass, ...]:
    """The passes of rows, each with the memory that its row shares: as one, if they are alike."""
    shared = {None if one is None else id(one.memory) for one in kept}
    joint = stack(passes) if len(passes) > 1 and len(shared) == 1 else None
    if joint is None:
        return tuple(replace(p, memory=memory_of(p, [one])) for p, one in zip(passes, kept, strict=True))
    return (replace(joint, memory=memory_of(passes[0], kept)),)


def memory_of(p: Pass, kept: Sequence[Kept | None]) -> Memory | None:
    """The memory of a pass, with these rows of it alone; nothing is kept where it is new."""
    there = [one for one in kept if one is not None]
    rows = [one.row for one in there]
    if p.memory is None or not there or rows == list(range(there[0].rows)):
        return p.memory
    return p.memory.take(torch.tensor(rows, device=p.x.device))


def kept_after(
    before: Sequence[Kept | None], asked: Ask, answer: NetworkAnswer, going: Sequence[bool]
) -> tuple[Kept | None, ...]:
    """What is kept of every row of a canvas after an answer, if it goes on."""
    kept, rows = list(before), len(asked.live) if len(answer.memories) == 1 else 1
    for i, row in enumerate(asked.live.tolist()):
        memory = answer.memories[0 if rows > 1 else i]
        kept[row] = None if memory is None or not going[row] else Kept(memory, i if rows > 1 else 0, rows)
    return tuple(kept)
