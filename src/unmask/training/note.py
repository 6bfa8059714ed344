"""training.json: how far a run has come, and the sha256 of the files of its checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.files import fingerprint
from unmask.untrusted import parse_json, read_text

FORMAT = 1
NOTE = "training.json"


@dataclass(frozen=True)
class Point:
    """The progress of a run."""

    step: int = 0  # updates so far
    best_step: int | None = None  # the checkpoint with the lowest bound of this phase
    best: float | None = None  # that bound
    error: float | None = None  # its standard error
    tokens: int = 0  # trained on so far
    seconds: float = 0.0  # in steps so far
    began: int | None = None  # first step of its phase; None: not known
    plan: int | None = None  # steps of the run from here on, where its clock has changed them


class Damaged(UserError):
    """A checkpoint that is not what was saved."""


def write_note(folder: Path, point: Point) -> None:
    """Write training.json for the files that are already in the folder, with the sha256 of each and of itself."""
    files = {path.name: fingerprint(path) for path in sorted(folder.iterdir())}
    note = {"format": FORMAT, **asdict(point), "files": files}
    text = json.dumps({**note, "sha256": digest(note)}) + "\n"
    (folder / NOTE).write_text(text, encoding="utf-8")


def digest(note: Mapping[str, Any]) -> str:
    """sha256 of a note, without the one that it holds."""
    return sha256(json.dumps({key: note[key] for key in note if key != "sha256"}).encode()).hexdigest()


def read_point(folder: Path) -> Point:
    return read_note(folder)[0]


def read_note(folder: Path) -> tuple[Point, dict[str, str]]:
    """The progress of the run and the sha256 of the files; older notes have none."""
    try:
        note = parse_json(read_text(folder / NOTE), NOTE, strict=False)  # a loss may be infinite
    except UserError as error:
        raise Damaged(f"{folder} cannot be resumed: {NOTE} is missing or damaged ({error}).") from None
    try:
        if note.pop("sha256", None) not in (None, digest(note)):
            raise ValueError("its sha256 differs")
        if note.pop("format") != FORMAT:
            raise UserError(f"{folder} was written by another version of unmask; this one reads format {FORMAT}.")
        files = note.pop("files", {})
        return Point(**note), dict(files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise Damaged(f"{folder} cannot be resumed: {NOTE} is missing or damaged ({error}).") from None


def check(folder: Path) -> Point:
    """The progress that a checkpoint holds; every file of it must have the sha256 with which it was saved."""
    point, files = read_note(folder)
    for name, recorded in files.items():
        try:
            seen = fingerprint(folder / name)
        except PermissionError:
            raise UserError(f"{folder} cannot be resumed: no permission to read {name}.") from None
        except OSError as error:
            raise Damaged(f"{folder} cannot be resumed: {name} cannot be read ({error.strerror}).") from None
        if seen != recorded:
            raise Damaged(f"{folder} cannot be resumed: {name} is not the file that was saved (its sha256 differs).")
    return point
