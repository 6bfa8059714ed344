"""A folder that is worked on here and kept at an address: prepared data, or a run with its checkpoints.

An object store has neither locks nor links nor renames. So the work is done in a folder of the cache, and files that
are new are uploaded: those that say that others are complete after them, and the names of the best and the last
checkpoint at the very end. No lock can be kept either: the process that began last owns the address, and one that
meets another owner stops before it uploads anything.
"""

import json
import os
import shutil
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from unmask import storage
from unmask.errors import UserError
from unmask.files import write_whole
from unmask.processes.lock import hold_lock
from unmask.untrusted import parse_json

OWNER = "owner.json"  # at the address, and beside the folder: who writes
LOCK = ".lock"
SETTINGS = "settings.toml"  # of a run
LAST = ("unmask.json", "training.json", "manifest.json", SETTINGS)  # they say that those beside them are complete
LINKS = ("best", "last")  # at the address, files that name a checkpoint
CHECKPOINTS, DATA = "checkpoints", "data"
Mark = tuple[int, int | str]


@dataclass(frozen=True)
class Mirror:
    """The folder of a run, and the address where it is kept."""

    address: str
    folder: Path
    known: dict[str, Mark | None] = field(default_factory=dict)  # what is at the address, as it is here

    @property
    def owner(self) -> Path:
        return self.folder.with_name(OWNER)

    def pull(self) -> None:
        """Make the folder what is at the address, unless this folder was the last to be kept there."""
        there = storage.listing(self.address)
        if set(there) - {OWNER} and SETTINGS not in there:
            raise UserError(f"{self.address} is not empty and holds no run: nothing was touched. Give another --out.")
        mine = self.owner.read_bytes() if self.owner.is_file() else b""
        if OWNER not in there or storage.read_remote(f"{self.address}/{OWNER}") != mine:
            shutil.rmtree(self.folder, ignore_errors=True)
            for name in sorted(set(there) - {OWNER, *LINKS}):
                if is_complete(name, there):
                    storage.download(f"{self.address}/{name}", self.folder / name)
            for name in set(LINKS) & set(there):
                self.link(name, storage.read_remote(f"{self.address}/{name}").decode(errors="replace"))
        here = self.marks()
        for name, (size, _) in there.items():
            written_once = name.split("/")[0] in (CHECKPOINTS, DATA) and is_complete(name, there)
            self.known[name] = here[name] if written_once and name in here and here[name][0] == size else None

    def own(self) -> None:
        """From now on this process writes to the address, and no other."""
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        who = {"process": os.getpid(), "host": socket.gethostname(), "since": now, "id": uuid4().hex}
        write_whole(self.owner, json.dumps(who))
        storage.write_remote(f"{self.address}/{OWNER}", self.owner.read_bytes())
        self.push()

    def link(self, name: str, target: str) -> None:
        if target.startswith(f"{CHECKPOINTS}/") and ".." not in target:
            (self.folder / name).symlink_to(target)

    def last(self) -> str:
        """The name of the last checkpoint."""
        with suppress(OSError):
            return os.readlink(self.folder / "last")
        return ""

    def marks(self) -> dict[str, Mark]:
        """The files here, each with what changes when it does."""
        marks: dict[str, Mark] = {}
        for path in files_in(self.folder):
            marks[path.relative_to(self.folder).as_posix()] = (path.stat().st_size, path.stat().st_mtime_ns)
        for path in (self.folder / name for name in LINKS):
            if path.is_symlink() and path.is_dir():
                marks[path.name] = (0, os.readlink(path))
        return marks

    def push(self) -> None:
        """Upload what is new; then remove at the address the checkpoints that are gone here."""
        content = storage.read_remote(f"{self.address}/{OWNER}")
        if content != self.owner.read_bytes():
            held = parse_json(content.decode(errors="replace"), f"{self.address}/{OWNER}")
            raise UserError(
                f"{self.address} was taken over by process {held.get('process')} on {held.get('host')}, since "
                f"{held.get('since')}: nothing more is written there. What this process has done is in {self.folder}."
            )
        here = self.marks()
        for name in sorted(here, key=upload_order):
            if self.known.get(name) != here[name]:
                if name in LINKS:
                    storage.write_remote(f"{self.address}/{name}", str(here[name][1]).encode())
                else:
                    storage.upload(self.folder / name, f"{self.address}/{name}")
                self.known[name] = here[name]
        gone = (name for name in set(self.known) - set(here) if name.split("/")[0] in (CHECKPOINTS, *LINKS))
        for name in sorted(gone, key=upload_order, reverse=True):
            storage.remove_remote(f"{self.address}/{name}")
            del self.known[name]


def files_in(folder: Path) -> Iterator[Path]:
    """The files of a folder, but for hidden ones, which are drafts and locks, and those that links lead to."""
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(where) / name for name in names if not name.startswith("."))
        yield from (path for path in paths if not path.is_symlink())


def upload_order(name: str) -> tuple[bool, bool, str]:
    return name in LINKS, Path(name).name in LAST, name


def is_complete(name: str, there: Collection[str]) -> bool:
    """Whether a file is not of a checkpoint that was uploaded or removed in part."""
    parts = name.split("/")
    return parts[0] != CHECKPOINTS or "/".join([*parts[:2], "training.json"]) in there


def mirror_of(place: str) -> Mirror | None:
    """The mirror of an address; None for a folder here."""
    if not storage.is_remote(place):
        return None
    if os.environ.get("LOCAL_WORLD_SIZE", "1") != os.environ.get("WORLD_SIZE", "1"):
        raise UserError(f"processes on several machines write to a folder that they share; --out is {place}.")
    return Mirror(place.rstrip("/"), work_folder(place) / "run")


def work_folder(address: str) -> Path:
    return storage.cache_folder() / "work" / storage.key_of(address)


@contextmanager
def hold_mirror(mirror: Mirror) -> Iterator[None]:
    """Hold the folder of a mirror during the block, for this process alone; upload it at the end."""
    with hold_lock(mirror.folder.with_name(LOCK)):
        mirror.pull()
        try:
            yield
        except GeneratorExit:  # the caller wants no more steps
            mirror.push()
            raise
        mirror.push()


@contextmanager
def upload_after(place: str, small: Collection[str]) -> Iterator[Path]:
    """A new folder to write, which is at its address after the block; of one that is there already the small files.

    The first of the small files says that the others are complete.
    """
    if not storage.is_remote(place):
        yield Path(storage.without_scheme(place))
        return
    if (there := storage.fetched_with_origin(place, tuple(small))) is not None:
        yield there
        return
    others = {name.split("/")[0] for name in storage.listing(place)} - {*small, "shards"}
    if others:
        raise UserError(f"{place} contains other files ({', '.join(sorted(others)[:3])}). Give --out a new folder.")
    folder = work_folder(place) / "data"
    yield folder
    for path in sorted(files_in(folder), key=lambda path: upload_order(path.name)):
        storage.upload(path, f"{place.rstrip('/')}/{path.relative_to(folder).as_posix()}")
    shutil.rmtree(folder, ignore_errors=True)
