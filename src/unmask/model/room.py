"""Memory: what this process may use, and a refusal before anything runs that would not fit."""

import os
from pathlib import Path

from unmask.diffusion.objective import Objective
from unmask.errors import UserError


def machine_bytes() -> int:
    """Bytes of memory that this process may use: the machine's, or its container's."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return whole


def check_room(objective: Objective, *, rows: int, vocab: int, less: str) -> None:
    """Refuse a forward pass of so many rows if what the objective needs does not fit; `less` is the remedy."""
    needed, there = objective.room(rows=rows, vocab=vocab), machine_bytes()
    if needed > there:
        raise UserError(
            f"the objective {objective.name} holds every token of the vocabulary at every position of a block: "
            f"{rows} rows with {vocab:,} tokens need {needed / 1e9:.1f} GB; this machine has {there / 1e9:.1f} GB. "
            f"Give a smaller {less}, or take a smaller vocabulary."
        )


def check_memory(needed: int) -> None:
    """Refuse a run that needs more bytes than this machine has."""
    if needed > (there := machine_bytes()):
        raise UserError(
            f"the run needs about {needed / 1e9:,.1f} GB of memory and this machine has {there / 1e9:,.1f} GB. Give "
            "a smaller --optim.batch, --optim.micro (rows per forward pass), --length or network, or "
            "--run.checkpointing; --run.oversize begins nevertheless."
        )
