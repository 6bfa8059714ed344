"""Files and folders that appear only when they are complete; and the sha256 of a file."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from unmask.errors import UserError


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A draft folder that replaces `folder` when the block succeeds, and is removed otherwise."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.draft-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        for path in [*draft.iterdir(), draft]:
            sync(path)
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
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def fingerprint(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
