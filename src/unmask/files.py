"""Files and folders that appear only when they are complete; and the sha256 of a file.

What is being written has another name (`.NAME.draft-PID`) until it is complete and on the disk. A killed process may
leave such a draft behind: readers ignore drafts, and the next writer of the folder removes them (`clear_drafts`).
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import file_digest
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from unmask.errors import UserError

DRAFT = re.compile(r"\.(?P<name>.+)\.(?P<kind>draft|old)-\w+")


def draft_of(path: Path, writer: str = "") -> Path:
    """The name of a file or folder while it is being written; the writer is this process, unless named."""
    return path.with_name(f".{path.name}.draft-{writer or os.getpid()}")


def is_draft(path: Path) -> bool:
    return DRAFT.fullmatch(path.name) is not None


def clear_drafts(folder: Path) -> None:
    """Remove what killed processes left half-written; a folder that was about to be replaced gets its name back."""
    with writing(folder):
        for path in sorted(folder.glob(".*")):
            match = DRAFT.fullmatch(path.name)
            if match is None:
                continue
            if match["kind"] == "old" and not (folder / match["name"]).exists():
                path.rename(folder / match["name"])
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system (full, read-only, no permission) into a UserError about the path."""
    try:
        yield
    except OSError as error:
        raise UserError(f"could not write {path}: {error.strerror or error}.") from error


def write_whole(path: Path, content: bytes | str) -> None:
    with open_draft(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def open_draft(path: Path) -> Iterator[IO[bytes]]:
    """A file to write piece by piece: after a kill at any moment it is the old one or the new one, never a part."""
    draft = draft_of(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        sync(path.parent)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A draft folder that replaces `folder` when the block succeeds, and is removed otherwise."""
    draft = draft_of(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        yield draft
        for path in draft.iterdir():
            if path.is_file():
                path.chmod(draft.stat().st_mode & 0o666)  # safetensors writes for its owner alone
            sync(path)
        sync(draft)
        replace(draft, folder)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(f"could not write {folder}: {error}. Nothing was changed.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def replace(draft: Path, folder: Path) -> None:
    """Replace the folder with the draft; the old folder is removed only afterwards."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    if folder.exists():
        folder.rename(old)
    try:
        draft.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Sync a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def fingerprint(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
