"""The training state on disk: kill the process at any moment and the last complete checkpoint is there.

    runs/mine/
      settings.toml                  what was asked for
      metrics.jsonl                  the curves
      data/                          prepared tokens, unless --data was prepared already
      checkpoints/step-00000500/     config.json, model.safetensors, unmask.json, tokenizer: for `unmask.load`
        training.safetensors         weights, AdamW's moments, and what the average cannot say
        training.json                step, best step so far, version of this layout
      best -> checkpoints/...        the lowest bound on validation
      last -> checkpoints/...

A folder appears under its name when it is complete and on the disk (`appearing`), so every name can be trusted.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unmask.errors import UserError
from unmask.model import checkpoint
from unmask.model.appearing import appearing
from unmask.model.weights import FILE, PREFIX
from unmask.text.tokenizer import Tokenizer
from unmask.training import ema
from unmask.training.loop import State

FORMAT = 1
FOLDER = "checkpoints"
TENSORS, NOTE = "training.safetensors", "training.json"


@dataclass(frozen=True)
class Point:
    """Where a run is."""

    step: int = 0  # updates so far
    best_step: int | None = None  # the checkpoint with the lowest bound of this phase
    best: float | None = None  # that bound
    tokens: int = 0  # seen so far
    seconds: float = 0.0  # spent in steps so far


def folder_of(out: Path, step: int) -> Path:
    return out / FOLDER / f"step-{step:08d}"


def steps_in(out: Path) -> list[int]:
    """The steps that have a complete checkpoint, in order."""
    return sorted(int(path.name.removeprefix("step-")) for path in (out / FOLDER).glob("step-*") if path.is_dir())


def save(
    out: Path,
    state: State,
    point: Point,
    *,
    mask: int,
    objective: str,
    tokenizer: Tokenizer | None,
    settings: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write a checkpoint, then forget old ones: the last `keep` and the best stay."""
    folder = folder_of(out, point.step)
    parameters = list(state.network.parameters())
    with appearing(folder) as draft:
        with ema.in_place(state.shadow, parameters if state.shadow else []):
            checkpoint.save(
                draft,
                state.network,
                mask=mask,
                objective=objective,
                tokenizer=tokenizer,
                settings=settings,
                step=point.step,
                ema=bool(state.shadow),
            )
        save_file(tensors(state), draft / TENSORS)
        (draft / NOTE).write_text(json.dumps({"format": FORMAT, **asdict(point)}) + "\n", encoding="utf-8")
    point_to(out / "last", folder)
    if point.best_step is not None and folder_of(out, point.best_step).is_dir():
        point_to(out / "best", folder_of(out, point.best_step))
    steps = steps_in(out)
    for step in set(steps[:-keep]) - {point.best_step}:
        shutil.rmtree(folder_of(out, step))
    return folder


def tensors(state: State) -> dict[str, Tensor]:
    """Everything a step changes, by name; the average is in model.safetensors, so the weights are here."""
    found = {}
    for name, p in state.network.named_parameters():
        moments = state.optimizer.state[p]
        found[f"weight.{name}"] = p.detach().cpu().contiguous()
        for key in ("exp_avg", "exp_avg_sq", "step"):
            if key in moments:
                found[f"{key}.{name}"] = moments[key].cpu().contiguous()
    return found


def read_point(folder: Path) -> Point:
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        if note.pop("format") != FORMAT:
            raise UserError(f"{folder} was written by another version of unmask; this one reads format {FORMAT}.")
        return Point(**note)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{folder} cannot be resumed: {NOTE} is missing or damaged ({error}).") from None


@torch.no_grad()
def restore(folder: Path, state: State) -> Point:
    """Copy a checkpoint into a fresh state of the same shape; returns where the run was.

    Values are copied into memory that torch laid out, not mapped from the file: where a tensor begins decides
    how its sums are ordered, and a resumed run must add in the same order.
    """
    try:
        with safe_open(folder / TENSORS, "pt") as file, safe_open(folder / FILE, "pt") as averaged:
            for i, (name, p) in enumerate(state.network.named_parameters()):
                p.copy_(file.get_tensor(f"weight.{name}"))
                if state.shadow:
                    state.shadow[i].copy_(averaged.get_tensor(f"{PREFIX}{name}"))
                moments = {key: file.get_tensor(f"{key}.{name}") for key in ("exp_avg", "exp_avg_sq", "step")}
                state.optimizer.state[p] = {
                    "step": moments["step"].clone(),
                    **{key: torch.zeros_like(p).copy_(moments[key]) for key in ("exp_avg", "exp_avg_sq")},
                }
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder} cannot be resumed: {error}.") from None
    return read_point(folder)


def resolved(source: str) -> str:
    """A run's folder stands for its best checkpoint, or its last; anything else for itself."""
    for name in ("best", "last"):
        if (Path(source) / name / "config.json").is_file():
            return str(Path(source) / name)
    return source


def clear_drafts(out: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in (out / FOLDER).glob(".*"):
        shutil.rmtree(path, ignore_errors=True)


def point_to(link: Path, folder: Path) -> None:
    """Make a relative link to a folder, in one step."""
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.relative_to(link.parent))
    draft.replace(link)
