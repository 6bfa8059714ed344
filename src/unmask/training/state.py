"""The training state on disk: after a kill at any moment the last complete checkpoint is there.

    runs/mine/
      settings.toml                  the settings of the run
      metrics.jsonl                  the curves
      data/                          prepared tokens, unless --data was prepared already
      checkpoints/step-00000500/     config.json, model.safetensors, unmask.json, tokenizer: for `unmask.load`
        training.safetensors         weights and AdamW's moments; of a sharded network shard-*.safetensors
        memory.safetensors           what a network carries to the next step, where it does
        training.json                step, best step so far, version of this layout, sha256 of the files
      best -> checkpoints/...        the lowest validation bound
      last -> checkpoints/...

A folder gets its name only when it is complete and on the disk (`appearing`), so every named folder was complete when
it was saved. `recovered` finds the last one that still is, when a run is opened.
"""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.errors import UserError
from unmask.files import appearing, draft_of, sync, writing
from unmask.model import checkpoint
from unmask.model.adapter import PART, LowRankUpdates, adapt
from unmask.model.adapter_files import WEIGHTS, is_adapter, stored_as
from unmask.model.denoiser import Denoiser
from unmask.model.weights import FILE
from unmask.processes import sharding
from unmask.processes.team import Alone, Team
from unmask.training import metrics
from unmask.training.loop import State
from unmask.training.note import NOTE, Damaged, Point, check, read_point, write_note

FOLDER = "checkpoints"
NAME = re.compile(r"step-(\d{8,})")
TENSORS = "training.safetensors"
MEMORY = "memory.safetensors"  # what the network carries from step to step, of all rows, where it does


def folder_of(out: Path, step: int) -> Path:
    return out / FOLDER / f"step-{step:08d}"


def steps_in(out: Path) -> list[int]:
    """The steps that have a complete checkpoint, in order."""
    named = ((NAME.fullmatch(path.name), path) for path in (out / FOLDER).glob("step-*"))
    return sorted(int(match[1]) for match, path in named if match and path.is_dir())


def save_state(
    out: Path, state: State[Any], point: Point, write: Callable[[Path], None], *, keep: int, team: Team = Alone()
) -> Path:
    """Write a checkpoint, then remove all but the last `keep` and the best. All processes must call it.

    `write` puts the files of the model into a folder that is not yet visible; rank 0 calls it.
    """
    folder = folder_of(out, point.step)
    changed = tensors(state)
    carried = None if state.memory is None else team.gather(state.memory)
    parts = draft_of(folder, "shards")  # written by all processes
    if state_is_sharded(state):
        sharding.write_shards(parts, changed)

    def publish() -> None:
        if (out / metrics.FILE).is_file():
            with writing(out / metrics.FILE):
                sync(out / metrics.FILE)  # the curves up to this step outlive a power cut, as the checkpoint does
        with appearing(folder) as draft:
            write(draft)
            if state_is_sharded(state):
                for path in parts.glob(sharding.SHARDS):
                    path.rename(draft / path.name)
            else:
                whole = {name: tensor.cpu().contiguous() for name, tensor in changed.items()}
                save_file(whole, draft / TENSORS)
            if carried is not None:
                save_file({"memory": carried.cpu()}, draft / MEMORY)
            write_note(draft, point)
        shutil.rmtree(parts, ignore_errors=True)
        tidy(out, point, keep=keep)

    team.lead(publish)
    return folder


def tidy(out: Path, point: Point, *, keep: int) -> None:
    """Update the links `last` and `best`, and remove all but the last `keep` checkpoints and the best."""
    try:
        for name, step in (("last", point.step), ("best", point.best_step)):
            if step is not None and folder_of(out, step).is_dir():
                point_to(out / name, folder_of(out, step))
            elif not (out / name).is_dir():
                (out / name).unlink(missing_ok=True)  # a link to a checkpoint that is gone
        for step in set(steps_in(out)[:-keep]) - {point.best_step}:
            remove(folder_of(out, step))
    except OSError as error:
        raise UserError(f"could not update the checkpoints in {out}: {error}.") from None


def remove(folder: Path) -> None:
    """Remove a checkpoint; a kill on the way leaves a draft, not half a checkpoint."""
    shutil.rmtree(folder.rename(draft_of(folder)))


def export_model(state: State[Denoiser], team: Team = Alone()) -> Denoiser | None:
    """The whole network with its averaged weights, on the CPU of rank 0; all processes must call it."""
    source = state.learner
    values = {name: p.detach() for name, p in source.named_parameters()}
    if state.shadow:
        values |= dict(zip((name for name, _ in source.learned()), state.shadow, strict=True))
    tensors_by_name = dict(source.named_buffers())
    for name, value in values.items():
        whole = sharding.whole(value)  # one at a time: the whole network may not fit on one device
        if team.rank == 0:
            tensors_by_name[name] = whole
    if team.rank:
        return None
    exports = checkpoint.on_meta(state.network.spec, source.objective)
    if source.adapter is not None:
        with torch.device("meta"):
            exports.parts[PART] = LowRankUpdates(exports.backbone, source.adapter.adapter)
    exports.load_state_dict({name: tensor.cpu() for name, tensor in tensors_by_name.items()}, assign=True)
    if exports.adapter is not None:
        adapt(exports.backbone, exports.adapter)
    exports.eval()
    exports.state = {name: value.cpu() for name, value in source.state.items()}
    return exports


def state_is_sharded(state: State[Any]) -> bool:
    return any(sharding.is_sharded(p) for p in state.learner.parameters())


def plain_name(name: str) -> str:
    """A parameter's name in training.safetensors: without the prefix of the network."""
    return name.removeprefix("backbone.")


def tensors(state: State[Any]) -> dict[str, Tensor]:
    """Everything that a step changes, by name; model.safetensors has the averaged weights, so the others are here.

    Weights that are not learned are not here, and those that get no gradient have no moments.
    """
    changed = {}
    for name, p in state.learner.learned():
        changed[f"weight.{plain_name(name)}"] = p.detach()
        for key, value in state.optimizer.state[p].items():
            changed[f"{key}.{plain_name(name)}"] = value
    return changed


def recover(out: Path, say: Callable[[str], None], *, keep: int) -> Point:
    """The progress of the last whole checkpoint, to which the links then point; damaged ones after it are set aside.

    Only one process may call it, before others read the folder.
    """
    damaged: list[tuple[Path, Damaged]] = []
    for step in reversed(steps_in(out)):
        folder = folder_of(out, step)
        try:
            point = check(folder)
            if point.step != step:
                raise Damaged(f"{folder} cannot be resumed: {NOTE} is that of step {point.step}.")
        except Damaged as error:
            damaged.append((folder, error))
            continue
        for other, why in damaged:
            say(f"warning: {why} Going on from step {step}; it was renamed {set_aside(other).name}.")
        tidy(out, point, keep=keep)
        return point
    if damaged:
        raise UserError(
            f"{damaged[0][1]} No checkpoint in {out / FOLDER} is whole. Put back a copy of one, or remove that "
            "folder: the run then begins again, with the same settings and data."
        )
    return Point()


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint, so that nothing takes it for a whole one."""
    aside = folder.with_name(f"damaged-{folder.name}")
    with writing(aside):
        if aside.is_dir():
            shutil.rmtree(aside)
        return folder.rename(aside)


@torch.no_grad()
def restore(folder: Path, state: State[Any], team: Team = Alone()) -> Point:
    """Copy a whole checkpoint (see `recovered`) into a new state of the same shape; returns the progress of the run.

    Values are copied into memory that torch allocated, not mapped from the file: the alignment of a tensor changes
    the order of its sums, and a resumed run must add in the same order.
    """
    names = [name for name, _ in state.learner.learned()]
    averages = dict(zip(names, state.shadow, strict=True)) if state.shadow else {}
    averages |= {f"state.{name}": value for name, value in state.learner.state.items()}
    if (folder / MEMORY).is_file():
        rows = load_file(folder / MEMORY)["memory"].chunk(team.world)[team.rank]
        state.memory = rows.clone().to(team.device)
    if state_is_sharded(state) or not (folder / TENSORS).is_file():
        for _, p in state.learner.learned():
            state.optimizer.state[p] = state.optimizer.memory(p)
        sharding.read_shards(folder, {**tensors(state), **averages})
    else:
        read_into(folder, state, averages)
    return read_point(folder)


def read_into(folder: Path, state: State[Any], averages: Mapping[str, Tensor]) -> None:
    """Copy the weights and moments of training.safetensors, and averages from the weights file, into a new state."""
    try:
        with safe_open(folder / TENSORS, "pt") as file:
            there = set(file.keys())
            for name, p in state.learner.learned():
                fresh = state.optimizer.memory(p)
                if all(f"{key}.{plain_name(name)}" in there for key in fresh):
                    state.optimizer.state[p] = fresh
            for name, tensor in tensors(state).items():
                tensor.copy_(file.get_tensor(name))
        if averages:
            adapted = is_adapter(folder)
            with safe_open(folder / (WEIGHTS if adapted else FILE), "pt") as averaged:
                for name, tensor in averages.items():
                    tensor.copy_(averaged.get_tensor(stored_as(name) if adapted else name))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder} cannot be resumed: {error}.") from None


def point_to(link: Path, folder: Path) -> None:
    """Make a relative link to a folder, atomically."""
    draft = draft_of(link)
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.relative_to(link.parent))
    draft.replace(link)
