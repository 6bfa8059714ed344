"""The curves of a run: one JSON object per line in metrics.jsonl."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.files import write_whole
from unmask.training.loop import Progress

FILE = "metrics.jsonl"


def append(out: Path, values: dict[str, Any]) -> None:
    try:
        with (out / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
    except OSError as error:
        raise UserError(f"could not write {out / FILE}: {error.strerror}. Checkpoints are as they were.") from None


def mean(steps: Sequence[Progress], *, likelihood: bool = True) -> dict[str, Any]:
    """Several steps as one line: means of loss and norm, sums of tokens and seconds; `likelihood`: the bound too."""
    last = steps[-1]
    names = ("loss", "bound", "norm") if likelihood else ("loss", "norm")
    means = {name: sum(getattr(p, name) for p in steps) / len(steps) for name in names}
    sums = {name: sum(getattr(p, name) for p in steps) for name in ("tokens", "seconds")}
    return {"step": last.step, "steps": len(steps), **means, "lr": last.lr, **sums}


def forget(out: Path, step: int) -> None:
    """Drop the lines after a step, which a resumed run writes again, and those that are not ours."""
    if not (out / FILE).exists():
        return
    lines = lines_of(out)
    earlier = b"".join(line + b"\n" for line in lines if 0 <= step_of(line) <= step)
    if earlier != b"\n".join(lines):
        write_whole(out / FILE, earlier)


def lines_of(out: Path) -> list[bytes]:
    """The lines of the file; the last one is empty, or was cut short by a kill."""
    try:
        return (out / FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        raise UserError(f"{out} holds no {FILE}: it is not a run, or has not started.") from None
    except OSError as error:
        raise UserError(f"cannot read {out / FILE}: {error.strerror}.") from None


def step_of(line: bytes) -> float:
    """The step of a line; -1 for a line that is not ours or was cut short."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return -1
    return step if type(step) is int else -1


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """All lines of a run."""
    return [json.loads(line) for line in lines_of(out) if step_of(line) >= 0]
