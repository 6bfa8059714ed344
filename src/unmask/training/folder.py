"""A run's folder before the first step: new or a run to resume, held by one process, with its data and settings.

runs/mine/
  .lock            who writes to the folder, while a process does
  settings.toml    written when the data is ready: its presence means that the folder holds a run
  data.sha256      of the manifest of the prepared data

If a new run fails before its first step, settings.toml goes again: the corrected command may use the folder.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from unmask import settings as toml
from unmask import storage
from unmask.errors import UserError
from unmask.files import clear_drafts, fingerprint, is_draft, write_whole, writing
from unmask.processes.lock import hold_lock
from unmask.processes.team import Team
from unmask.settings import flat
from unmask.text.corpus.manifest import MANIFEST, prepared_folder
from unmask.training import metrics, state
from unmask.training.data import check_trainable, data_folder, open_data, starting_spec
from unmask.training.phases import check_directions
from unmask.training.settings import Train, settle_training

SETTINGS, DATA, LOCK = "settings.toml", "data.sha256", ".lock"
UNBEGUN = {"data", DATA, LOCK}  # what a process leaves that was killed before the run began
FREE = ("out", "steps", "run")  # settings that a resumed run may change


def stored_settings(out: str) -> Path | None:
    """The file with the settings of a run, if there is one."""
    if storage.is_remote(out):
        return storage.fetch_files(f"{out.rstrip('/')}/{SETTINGS}") if SETTINGS in storage.listing(out) else None
    path = Path(storage.without_scheme(out)) / SETTINGS
    return path if path.is_file() else None


@contextmanager
def claim_folder(
    asked: Train,
    say: Callable[[str], None],
    *,
    resume: bool,
    team: Team,
    fit: Callable[[Train, Path], Train] = lambda asked, folder: asked,
) -> Iterator[Train]:
    """Hold the run's folder during the block, with its data and settings in it and nothing half-written.

    Rank 0 holds it for all processes. `fit` completes the settings of a new run by its data; the block gets them.
    """
    with ExitStack() as stack:
        team.lead(lambda: claim(asked, say, stack, resume=resume, world=team.world, fit=fit))
        yield toml.read_toml(Path(asked.out) / SETTINGS, Train())


def claim(
    asked: Train,
    say: Callable[[str], None],
    stack: ExitStack,
    *,
    resume: bool,
    world: int,
    fit: Callable[[Train, Path], Train] = lambda asked, folder: asked,
) -> None:
    """Check and lock the run's folder, write its data and settings, and bring it back to its last checkpoint."""
    if not asked.out:
        raise UserError("where should the run go? Give --out FOLDER, such as --out runs/mine.")
    if not asked.data:
        raise UserError("what should it learn from? Give --data: a file, a folder, a glob, -, a corpus or hf:NAME.")
    if asked.optim.batch % world:
        raise UserError(
            f"--optim.batch {asked.optim.batch}: that many rows cannot be shared equally by {world} processes: "
            f"make it a multiple of {world}."
        )
    out = Path(asked.out)
    check_folder(asked, out, resume=resume)
    new = not (out / SETTINGS).is_file()
    if new:
        check_directions(asked, starting_spec(asked))
    stack.enter_context(hold_folder(out, lambda: check_folder(asked, out, resume=resume)))
    for folder in (out / state.FOLDER, out / "data"):
        clear_drafts(folder)
    if new and not (out / SETTINGS).is_file():
        stack.push(partial(forget_failure, asked))
    folder = data_folder(asked, out, say, replace=new and known_data(out) == data_at(out / "data") != "")
    keep_data(out, folder)
    check_trainable(folder)
    asked = with_stored_threads(asked, out) if (out / SETTINGS).is_file() else fit(asked, folder)
    open_data(asked, folder)
    if resume or not (out / SETTINGS).exists():
        write_whole(out / SETTINGS, toml.dumps(asked))
    point = state.recover(out, say, keep=asked.run.keep)
    metrics.forget(out, point.step)


def with_stored_threads(asked: Train, out: Path) -> Train:
    """The settings with the threads that the run was begun with, unless it asks for a number: sums depend on it."""
    stored = toml.read_toml(out / SETTINGS, Train()).run.threads
    return asked if asked.run.threads != "auto" else replace(asked, run=replace(asked.run, threads=stored))


@contextmanager
def hold_folder(out: Path, check: Callable[[], None]) -> Iterator[None]:
    """Lock a run's folder during the block; it is checked again, as its last holder may have changed it."""
    with hold_lock(out / LOCK):
        check()
        clear_drafts(out)
        yield


def forget_failure(asked: Train, kind: type[BaseException] | None, *_: Any) -> None:
    """After an error in a new run that has trained nothing: remove its settings, so that it has never begun.

    Its tokens stay, for a corrected command that needs the same ones; another one replaces them.
    """
    out = Path(asked.out)
    failed = kind is not None and issubclass(kind, Exception)  # an interrupted run is there to be resumed
    if not failed or state.steps_in(out) or (out / metrics.FILE).exists():
        return
    with suppress(OSError):
        (out / SETTINGS).unlink(missing_ok=True)
        if prepared_folder(asked.data) is not None:  # tokens that are not the run's own are never replaced
            (out / DATA).unlink(missing_ok=True)


def check_folder(asked: Train, out: Path, *, resume: bool) -> None:
    """Refuse a folder that holds another run or other files."""

    def changed() -> dict[str, str]:
        changes = differences(settle_training(toml.read_toml(out / SETTINGS, Train())), asked, FREE)
        if "data" in changes and known_data(out) and known_data(out) == data_at(Path(asked.data)):
            del changes["data"]  # the same data in another place
        return changes

    advice = (
        f"Only --steps and those in [run] may change. Start a new run, with --init {out} to begin from this one's "
        "weights."
    )
    check_run(out, changed, advice, resume=resume, unbegun=UNBEGUN)


def check_run(
    out: Path, changed: Callable[[], Mapping[str, str]], advice: str, *, resume: bool, unbegun: Collection[str]
) -> None:
    """Refuse a folder that holds another run or other files; what `changed` says is told with advice."""
    with writing(out):
        if out.exists() and not out.is_dir():
            raise UserError(f"--out {out} is a file; give a folder.")
        there = [path for path in out.iterdir() if not is_draft(path)] if out.exists() else []
    if (out / SETTINGS).is_file():
        if not resume:
            raise UserError(f"{out} already holds a run. Resume it with --resume, or give another --out.")
        if wrong := changed():
            raise UserError(f"a resumed run keeps its settings: {'; '.join(wrong.values())}. {advice}")
    elif any(path.name not in unbegun for path in there):
        raise UserError(f"{out} is not empty and holds no run: nothing was touched. Give another --out.")


def differences(before: Any, now: Any, free: Collection[str]) -> dict[str, str]:
    """The settings that a resumed run may not change and that differ, in words; those of a `free` group may."""
    old, new = flat(toml.describe_settings(before)), flat(toml.describe_settings(now))
    names = [name for name in {**old, **new} if name not in free and name.partition(".")[0] not in free]
    return {
        name: f"{name} is {old.get(name)!r}, not {new.get(name)!r}"
        for name in names
        if old.get(name) != new.get(name)
    }


def keep_data(out: Path, folder: Path) -> None:
    """Write down which data a new run learns from; refuse data that replaced those of a run."""
    known, now = known_data(out), data_at(folder)
    if (out / SETTINGS).is_file() and known not in ("", now):
        raise UserError(
            f"{folder} does not hold the data that this run was begun with: it was prepared again, from other text "
            f"or in another way. Put the old data back, or start a new run with --init {out}."
        )
    if known != now:
        write_whole(out / DATA, f"{now}  {MANIFEST}\n")


def known_data(out: Path) -> str:
    """The sha256 of the manifest that a run was begun with; empty: not known."""
    try:
        return (out / DATA).read_text(encoding="utf-8", errors="replace").partition(" ")[0]
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UserError(f"cannot read {out / DATA}: {error.strerror}.") from None


def data_at(folder: Path) -> str:
    """The sha256 of a prepared folder's manifest; empty: it has none."""
    try:
        return fingerprint(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise UserError(f"cannot read {folder / MANIFEST}: {error.strerror}.") from None
