"""The training state on disk: after a kill at any moment the last complete checkpoint is there.

    runs/mine/
      settings.toml                  the settings of the run
      metrics.jsonl                  the curves
      data/                          prepared tokens, unless --data was prepared already
      checkpoints/step-00000500/     config.json, model.safetensors, unmask.json, tokenizer: for `unmask.load`
        training.safetensors         weights and AdamW's moments; of a sharded network shard-*.safetensors
        memory.safetensors           what a network carries to the next step, where it does
        training.json                step, best step so far, version of this layout
      best -> checkpoints/...        the lowest validation bound
      last -> checkpoints/...

A folder gets its name only when it is complete and on the disk (`appearing`), so every named folder is complete.
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
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.diffusion.objective import Objective
from unmask.errors import UserError
from unmask.files import appearing
from unmask.model import checkpoint
from unmask.model.denoiser import Denoiser
from unmask.model.weights import FILE
from unmask.processes import sharding
from unmask.processes.team import Alone, Team
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.training import optim
from unmask.training.loop import State

FORMAT = 1
FOLDER = "checkpoints"
TENSORS, NOTE = "training.safetensors", "training.json"
MEMORY = "memory.safetensors"  # what the network carries from step to step, of all rows, where it does


@dataclass(frozen=True)
class Point:
    """The progress of a run."""

    step: int = 0  # updates so far
    best_step: int | None = None  # the checkpoint with the lowest bound of this phase
    best: float | None = None  # that bound
    tokens: int = 0  # trained on so far
    seconds: float = 0.0  # in steps so far


def folder_of(out: Path, step: int) -> Path:
    return out / FOLDER / f"step-{step:08d}"


def steps_in(out: Path) -> list[int]:
    """The steps that have a complete checkpoint, in order."""
    return sorted(int(path.name.removeprefix("step-")) for path in (out / FOLDER).glob("step-*") if path.is_dir())


def save_state(
    out: Path,
    state: State,
    point: Point,
    *,
    mask: int,
    objective: Objective,
    tokenizer: Tokenizer | None,
    settings: Mapping[str, Any],
    keep: int,
    team: Team = Alone(),
) -> Path:
    """Write a checkpoint, then remove all but the last `keep` and the best. All processes must call it."""
    folder = folder_of(out, point.step)
    exports = exported(state, team)
    changed = tensors(state)
    carried = None if state.memory is None else team.gather(state.memory)
    parts = folder.with_name(f".{folder.name}.shards")
    if state_is_sharded(state):
        sharding.write_shards(parts, changed)

    def publish() -> None:
        assert exports is not None
        with appearing(folder) as draft:
            checkpoint.save(
                draft,
                exports.backbone,
                parts=dict(exports.parts.items()),
                state=exports.state,
                mask=mask,
                objective=objective,
                tokenizer=tokenizer,
                settings=settings,
                step=point.step,
                ema=bool(state.shadow),
            )
            if state_is_sharded(state):
                for path in parts.glob(sharding.SHARDS):
                    path.rename(draft / path.name)
            else:
                whole = {name: tensor.cpu().contiguous() for name, tensor in changed.items()}
                save_file(whole, draft / TENSORS)
            if carried is not None:
                save_file({"memory": carried.cpu()}, draft / MEMORY)
            (draft / NOTE).write_text(json.dumps({"format": FORMAT, **asdict(point)}) + "\n", encoding="utf-8")
        shutil.rmtree(parts, ignore_errors=True)
        tidy(out, point, keep=keep)

    team.lead(publish)
    return folder


def tidy(out: Path, point: Point, *, keep: int) -> None:
    """Update the links `last` and `best`, and remove all but the last `keep` checkpoints and the best."""
    try:
        point_to(out / "last", folder_of(out, point.step))
        if point.best_step is not None and folder_of(out, point.best_step).is_dir():
            point_to(out / "best", folder_of(out, point.best_step))
        for step in set(steps_in(out)[:-keep]) - {point.best_step}:
            shutil.rmtree(folder_of(out, step))
    except OSError as error:
        raise UserError(f"could not update the checkpoints in {out}: {error}.") from None


def exported(state: State, team: Team = Alone()) -> Denoiser | None:
    """The whole network with its averaged weights, on the CPU of rank 0; all processes must call it."""
    source = state.denoiser
    names = [name for name, _ in source.named_parameters()]
    values = state.shadow or [p.detach() for p in source.parameters()]
    found = dict(source.named_buffers())
    for name, value in zip(names, values, strict=True):
        whole = sharding.whole(value)  # one at a time: the whole network may not fit on one device
        if team.rank == 0:
            found[name] = whole
    if team.rank:
        return None
    exports = checkpoint.on_meta(state.network.spec, source.objective)
    exports.load_state_dict({name: tensor.cpu() for name, tensor in found.items()}, assign=True)
    exports.state = {name: value.cpu() for name, value in source.state.items()}
    return exports


def state_is_sharded(state: State) -> bool:
    return any(sharding.is_sharded(p) for p in state.denoiser.parameters())


def plain(name: str) -> str:
    """A parameter's name in training.safetensors: without the prefix of the network."""
    return name.removeprefix("backbone.")


def tensors(state: State) -> dict[str, Tensor]:
    """Everything that a step changes, by name; model.safetensors has the averaged weights, so the others are here."""
    found = {}
    for name, p in state.denoiser.named_parameters():
        found[f"weight.{plain(name)}"] = p.detach()
        for key, value in state.optimizer.state[p].items():
            found[f"{key}.{plain(name)}"] = value
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
def restore(folder: Path, state: State, team: Team = Alone()) -> Point:
    """Copy a checkpoint into a new state of the same shape; returns the progress of the run.

    Values are copied into memory that torch allocated, not mapped from the file: the alignment of a tensor changes
    the order of its sums, and a resumed run must add in the same order.
    """
    for p in state.denoiser.parameters():
        state.optimizer.state[p] = optim.memory(state.optimizer, p)
    names = [name for name, _ in state.denoiser.named_parameters()]
    averages = dict(zip(names, state.shadow, strict=True)) if state.shadow else {}
    averages |= {f"state.{name}": value for name, value in state.denoiser.state.items()}
    wanted = tensors(state)
    if (folder / MEMORY).is_file():
        rows = load_file(folder / MEMORY)["memory"].chunk(team.world)[team.rank]
        state.memory = rows.clone().to(team.device)
    if state_is_sharded(state) or not (folder / TENSORS).is_file():
        sharding.read_shards(folder, {**wanted, **averages})
        return read_point(folder)
    try:
        with safe_open(folder / TENSORS, "pt") as file, safe_open(folder / FILE, "pt") as averaged:
            for values, source in ((wanted, file), (averages, averaged)):
                for name, tensor in values.items():
                    tensor.copy_(source.get_tensor(name))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder} cannot be resumed: {error}.") from None
    return read_point(folder)


def resolved(source: str) -> str:
    """The best, else the last, checkpoint of a run's folder; anything else unchanged."""
    return str(checkpoint.in_run(Path(source))) if Path(source).is_dir() else source


def clear_drafts(out: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in (out / FOLDER).glob(".*"):
        shutil.rmtree(path, ignore_errors=True)


def point_to(link: Path, folder: Path) -> None:
    """Make a relative link to a folder, atomically."""
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.relative_to(link.parent))
    draft.replace(link)
