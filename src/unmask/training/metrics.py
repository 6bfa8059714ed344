"""The curves of a run: one JSON object per line in metrics.jsonl."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.training.loop import Progress

FILE = "metrics.jsonl"


def append(out: Path, values: dict[str, Any]) -> None:
    try:
        with (out / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
    except OSError as error:
        raise UserError(f"could not write {out / FILE}: {error.strerror}. Checkpoints are as they were.") from None


def mean(steps: Sequence[Progress]) -> dict[str, Any]:
    """Several steps as one line: means of loss and norm, sums of tokens and seconds."""
    last = steps[-1]
    means = {name: sum(getattr(p, name) for p in steps) / len(steps) for name in ("loss", "bound", "norm")}
    sums = {name: sum(getattr(p, name) for p in steps) for name in ("tokens", "seconds")}
    return {"step": last.step, "steps": len(steps), **means, "lr": last.lr, **sums}


def forget(out: Path, step: int) -> None:
    """Drop the lines after a step: a resumed run writes them again."""
    path = out / FILE
    if path.is_file():
        kept = [line for line in path.read_text(encoding="utf-8").splitlines() if step_of(line) <= step]
        draft = path.with_name(f".{FILE}")
        draft.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        draft.replace(path)


def step_of(line: str) -> float:
    """The step of a line; infinite for a line that a kill cut short."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """All lines of a run."""
    try:
        lines = (out / FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        raise UserError(f"{out} holds no {FILE}: it is not a run, or has not started.") from None
    return [json.loads(line) for line in lines if step_of(line) < float("inf")]
