"""One writer: a lock file that a living process holds, so that two processes never write to one folder."""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from unmask.errors import UserError
from unmask.files import writing

LOCKLESS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # file systems without locks


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock file during the block; refused while another process holds it.

    The system frees the lock of a process that dies, however it dies. A missing folder is made, and removed again if
    it is empty in the end.
    """
    made = not os.path.lexists(path.parent)
    with writing(path.parent):
        handle = take_lock(path)
    try:
        yield
    finally:
        with suppress(OSError):  # on a disk that has become read-only, the file stays and holds nothing
            path.unlink()
        os.close(handle)
        if made:
            with suppress(OSError):
                path.parent.rmdir()


def take_lock(path: Path) -> int:
    """The open lock file, locked, with a note of who holds it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with suppress_lockless():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if same_file(handle, path):
                note_holder(handle)
                return handle
        except BlockingIOError:
            holder = holder_of(handle)
            os.close(handle)
            raise UserError(
                f"{path.parent} is in use: {holder} is writing to it. Wait until it has ended, or give another --out."
            ) from None
        except OSError:
            os.close(handle)
            raise
        os.close(handle)  # its last holder removed it between our two calls


@contextmanager
def suppress_lockless() -> Iterator[None]:
    """Go on without a lock where the file system has none."""
    try:
        yield
    except OSError as error:
        if error.errno not in LOCKLESS:
            raise


def same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def note_holder(handle: int) -> None:
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    holder = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(holder).encode(), 0)


def holder_of(handle: int) -> str:
    """Who holds a lock, as its file says."""
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        return f"process {holder['process']} on {holder['host']}, since {holder['since']},"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
