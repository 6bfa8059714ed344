"""A run's folder before the first step: new or a run to resume, with its data and settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unmask import settings as toml
from unmask.errors import UserError
from unmask.training import state
from unmask.training.data import prepared
from unmask.training.settings import Train, settled

FIXED = ("seed", "data", "text", "model", "objective", "recipe", "init")


def claim(asked: Train, say: Callable[[str], None], *, resume: bool, world: int) -> None:
    """Check the run's folder and write its data and settings."""
    out = claimed(asked, resume=resume)
    if asked.optim.batch % world:
        raise UserError(
            f"optim.batch = {asked.optim.batch} rows cannot be shared equally by {world} processes: "
            f"make it a multiple of {world}."
        )
    prepared(asked, out, say)
    if resume or not (out / "settings.toml").exists():
        write_settings(out, asked)


def claimed(asked: Train, *, resume: bool) -> Path:
    """The run's folder; refused if it holds another run or other files."""
    if not asked.out:
        raise UserError("where should the run go? Give --out FOLDER, such as --out runs/mine.")
    if not asked.data:
        raise UserError("what should it learn from? Give --data: a file, a folder, a glob, - or hf:NAME.")
    out = Path(asked.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; give a folder.")
    saved = out / "settings.toml"
    if saved.is_file():
        if not resume:
            raise UserError(f"{out} already holds a run. Resume it with --resume, or give another --out.")
        before, now = fixed(settled(toml.read_toml(saved, Train()))), fixed(asked)
        changed = [name for name in now if before[name] != now[name]]
        if changed:
            first = changed[0]
            raise UserError(
                f"a resumed run keeps its {', '.join(changed)}: it has {before[first]}, asked for is {now[first]}. "
                "Start a new run, with --init to begin from this one's weights."
            )
    elif out.is_dir() and any(path.name != "data" for path in out.iterdir()):
        raise UserError(f"{out} is not empty and holds no run: nothing was touched. Give another --out.")
    state.clear_drafts(out)
    return out


def fixed(settings: Train) -> dict[str, Any]:
    """Settings that a resumed run cannot change."""
    return {name: getattr(settings, name) for name in FIXED} | {"optim.name": settings.optim.name}


def write_settings(out: Path, asked: Train) -> None:
    out.mkdir(parents=True, exist_ok=True)
    draft = out / ".settings.toml"
    draft.write_text(toml.dumps(asked), encoding="utf-8")
    draft.replace(out / "settings.toml")
