"""Shards are what the manifest says: sizes are checked at every opening, the sha256 at the first.

A stamp in the folder remembers the size and times of every file that was read and found right, so that later openings
are fast; a file that was changed or copied is read again. Where the folder cannot be written, so is every file.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from unmask import storage
from unmask.errors import UserError
from unmask.files import fingerprint, write_whole
from unmask.text.corpus.shards import SHARDS, Shard

STAMP = ".verified.json"


def check_shards(folder: Path, shards: Sequence[Shard], *, size: int, again: bool = False) -> bool:
    """Refuse a missing, short or damaged shard, for a vocabulary of `size` ids; `again` ignores the stamp.

    Returns whether a file was read: whether it may be another one than before.
    """
    if (origin := storage.origin_of(folder)) is not None:
        check_remote(origin, shards, size=size, again=again)
        return False
    known = {} if again else read_stamp(folder)
    checked: dict[str, list[Any]] = {}
    for name, length, digest in (file for shard in shards for file in shard.files(size)):
        path = folder / SHARDS / name
        status = check_size(path, length)
        mark = [digest, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        if known.get(name) != mark:
            check_content(path, digest)
            checked[name] = mark
    if checked:
        with suppress(UserError, OSError):  # data on a read-only disk is as good
            for draft in folder.glob(f".{STAMP}.draft-*"):  # of a process that was killed
                draft.unlink(missing_ok=True)
            write_whole(folder / STAMP, json.dumps({**known, **checked}) + "\n")
    return bool(checked)


def check_remote(origin: storage.Origin, shards: Sequence[Shard], *, size: int, again: bool) -> None:
    """Refuse shards elsewhere that are missing or short, and with `again` those that are damaged."""
    for name, length, digest in (file for shard in shards for file in shard.files(size)):
        where = f"{origin.address}/{SHARDS}/{name}"
        there = origin.sizes.get(f"{SHARDS}/{name}", -1)
        if there != length:
            what = "is missing" if there < 0 else f"has {there} bytes where the manifest says {length}"
            raise UserError(f"the shard {where} {what}. Prepare the data again.")
        if again and sha256(storage.read_remote(where)).hexdigest() != digest:
            raise UserError(f"the shard {where} is damaged: its sha256 differs from the manifest's.")


def check_size(path: Path, size: int) -> os.stat_result:
    try:
        status = path.stat()
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise UserError(f"the shard {path} {what}. Prepare the data again.") from None
    if status.st_size != size:
        raise UserError(
            f"the shard {path} has {status.st_size} bytes where the manifest says {size}. Prepare the data again."
        )
    return status


def check_content(path: Path, digest: str) -> None:
    try:
        seen = fingerprint(path)
    except OSError as error:
        raise UserError(f"the shard {path} cannot be read: {error.strerror}.") from None
    if seen != digest:
        raise UserError(
            f"the shard {path} is damaged: its sha256 differs from the manifest's. Remove {path.parent.parent} and "
            "prepare the data again; a run that uses it can then go on."
        )


def read_stamp(folder: Path) -> dict[str, Any]:
    """What the stamp remembers: nothing, if it is missing or not ours."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return stamp if isinstance(stamp, dict) else {}
