"""Files by address (s3://bucket/name, gs://, hf://, memory://): the only file that knows fsspec.

What is read whole, such as a model or a text, is downloaded into the cache if it is new. Of the shards of a corpus
the blocks that are asked for are downloaded; those that were not used for longest go when there are too many.
"""

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import lru_cache, partial
from glob import has_magic
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.files import appearing, open_draft, write_json, write_whole, writing
from unmask.untrusted import read_object

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
HERE = "file://"
BLOCK = 4 << 20  # bytes of a shard that are downloaded at once
ORIGIN = "origin.json"  # in a folder of the cache: the address of the files that are not in it


def is_remote(place: str | Path) -> bool:
    """Whether a place is an address of files elsewhere; file:// is not."""
    return isinstance(place, str) and bool(ADDRESS.fullmatch(place)) and not place.startswith(HERE)


def without_scheme(place: str) -> str:
    """A place on this machine without file://; any other as it is."""
    return place.removeprefix(HERE)


def cache_folder() -> Path:
    """Where downloads are kept: UNMASK_CACHE, else ~/.cache/unmask."""
    return Path(os.environ.get("UNMASK_CACHE") or Path.home() / ".cache" / "unmask")


def cache_limit() -> int:
    """Bytes of shards that the cache may hold: UNMASK_CACHE_GB, else 20 GB."""
    text = os.environ.get("UNMASK_CACHE_GB") or "20"
    try:
        return max(int(float(text) * 1e9), 2 * BLOCK)
    except (ValueError, OverflowError):
        raise UserError(f"UNMASK_CACHE_GB is a number of GB, such as 20; saw {text!r}.") from None


def key_of(address: str, *more: object) -> str:
    """A name in the cache: readable, and of this address alone."""
    readable = re.sub(r"[^\w.-]+", "-", address)[-60:].strip("-.")
    return f"{readable}-{sha256(repr((address.rstrip('/'), *more)).encode()).hexdigest()[:16]}"


@contextmanager
def _reaching(address: str) -> Iterator[tuple[Any, str]]:
    """The file system of an address and the path in it; its errors, of whatever library, become a `UserError`."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(address)
        system.invalidate_cache()
        yield system, path.rstrip("/")
    except UserError:
        raise
    except ImportError as error:
        extra = " Run: pip install 'unmask[remote]'" if address.startswith("s3") else ""
        raise UserError(f"{address} needs a package that is missing: {error}.{extra}") from None
    except FileNotFoundError as error:
        raise UserError(f"there is nothing at {address}: {_first_line(error)}.") from None
    except Exception as error:  # each library has errors of its own, for keys, buckets, networks
        raise UserError(f"cannot reach {address}: {_first_line(error)}.") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__


def listing(address: str) -> dict[str, tuple[int, str]]:
    """The files at and below an address, by their path from it: size and version; a file alone has the path ''."""
    with _reaching(address) as (system, path):
        files = {}
        for name, info in system.find(path, detail=True).items():
            inner = name.removeprefix(path).lstrip("/")
            if ".." in inner.split("/") or (inner and not name.startswith(path + "/")):
                raise UserError(f"{address} has a file with the name {name!r}: rename it.")
            if info["type"] == "file" and not name.endswith("/"):
                files[inner] = (
                    int(info["size"] or 0),
                    sha256(str(sorted(info.items(), key=str)).encode()).hexdigest(),
                )
        return files


def download(address: str, path: Path) -> None:
    """Write a remote file to a path, which appears when it is complete."""
    with open_draft(path) as file, _reaching(address) as (system, remote):
        system.get_file(remote, file.name)


def upload(path: Path, address: str) -> None:
    """Write a file to an address; an object store shows it when it is complete."""
    with _reaching(address) as (system, remote):
        system.put_file(str(path), remote)


def read_remote(address: str, start: int | None = None, stop: int | None = None) -> bytes:
    """The bytes of a remote file from `start` to `stop`."""
    with _reaching(address) as (system, remote):
        return system.cat_file(remote, start=start, end=stop)


def write_remote(address: str, content: bytes) -> None:
    with _reaching(address) as (system, remote):
        system.pipe_file(remote, content)


def remove_remote(address: str) -> None:
    with _reaching(address) as (system, remote):
        if system.exists(remote):
            system.rm_file(remote)


def fetch_files(address: str, wanted: Callable[[str], bool] = bool, *, origin: bool = False) -> Path:
    """A remote file, or the `wanted` files of a folder, in the cache: downloaded if they are new or changed.

    `origin`: with a file that says where the others are, for `bytes_of`.
    """
    files = listing(address)
    chosen = sorted(name for name in files if wanted(name) or not name)
    if not chosen:
        raise UserError(f"there is nothing at {address}" + (", or no file that is looked for." if files else "."))
    seen = files.items() if origin else [(name, files[name]) for name in chosen]
    folder = cache_folder() / "files" / key_of(address, origin, sorted(seen))
    with _one_at_a_time(folder):
        if not folder.is_dir():
            with appearing(folder) as draft:
                for name in chosen:
                    whole = f"{address.rstrip('/')}/{name}" if name else address
                    download(whole, draft / (name or Path(address).name))
                if origin:
                    sizes = {name: size for name, (size, _) in files.items()}
                    write_json(draft / ORIGIN, {"address": address.rstrip("/"), "sizes": sizes})
    return folder / Path(address).name if "" in chosen else folder


def local_place(place: str, wanted: Callable[[str], bool]) -> str:
    """A place on this machine: of an address, that of the files downloaded: those of its glob, else the `wanted`."""
    if not is_remote(place):
        return without_scheme(place)
    address, *parts = re.split(r"(?<!/)/(?!/)", place)  # s3://bucket, a, *.txt
    first = next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
    pattern, whole = "/".join(parts[first:]), "/".join([address, *parts[:first]])
    return str(fetch_files(whole, partial(fnmatch, pat=pattern) if pattern else wanted) / pattern)


def fetched_with_origin(address: str, names: Sequence[str]) -> Path | None:
    """A folder of the cache with the named files, and with ORIGIN for the others; None: the first is not there."""
    return fetch_files(address, names.__contains__, origin=True) if names[0] in listing(address) else None


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other process makes this folder."""
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Origin:
    """Where the other files of a folder of the cache are."""

    folder: Path
    address: str
    sizes: Mapping[str, int]

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes of a file, from the cache's blocks as far as they are there."""
        parts = [
            self._within(name, index, max(start - index * BLOCK, 0), min(stop - index * BLOCK, BLOCK))
            for index in range(start // BLOCK, -(-stop // BLOCK))
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _within(self, name: str, index: int, start: int, stop: int) -> bytes:
        path = cache_folder() / "blocks" / f"{key_of(self.folder.name, name)}.{index}"
        with suppress(FileNotFoundError), path.open("rb") as file:
            os.utime(path)  # it was used
            file.seek(start)
            return file.read(stop - start)
        data = read_remote(f"{self.address}/{name}", index * BLOCK, min((index + 1) * BLOCK, self.sizes[name]))
        make_room(path.parent, cache_limit() - len(data))
        write_whole(path, data)
        return data[start:stop]


def make_room(folder: Path, limit: int) -> None:
    """Remove the blocks that were not used for longest, until the others have at most `limit` bytes."""
    with suppress(FileNotFoundError):  # no block yet; or another process removes them too
        known = sorted((one.stat().st_mtime_ns, one.stat().st_size, one.path) for one in os.scandir(folder))
        total = sum(size for _, size, _ in known)
        for _, size, path in known:
            if total <= limit:
                return
            os.unlink(path)
            total -= size


@lru_cache(maxsize=64)
def origin_of(folder: Path) -> Origin | None:
    """Where the other files of a folder are; None: the folder is complete."""
    if not (folder / ORIGIN).is_file():
        return None
    content = read_object(folder / ORIGIN)
    return Origin(folder, content["address"], content["sizes"])


@dataclass(frozen=True)
class RemoteArray:
    """A file of numbers elsewhere: a slice is another such array, and numpy reads it when it takes one."""

    origin: Origin
    name: str
    start: int  # in bytes
    stop: int
    dtype: np.dtype

    def __len__(self) -> int:
        return (self.stop - self.start) // self.dtype.itemsize

    def __getitem__(self, some: slice) -> "RemoteArray":
        first, last, _ = some.indices(len(self))
        size = self.dtype.itemsize
        return replace(self, start=self.start + first * size, stop=self.start + max(first, last) * size)

    def view(self, dtype: Any) -> "RemoteArray":
        return replace(self, dtype=np.dtype(dtype))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        data = self.origin.read(self.name, self.start, self.stop) if self.stop > self.start else b""
        return np.frombuffer(data, self.dtype).astype(dtype or self.dtype, copy=bool(copy))


def bytes_of(folder: Path, name: str) -> np.ndarray | RemoteArray:
    """The bytes of a file of a folder: mapped into memory, or read from where the folder comes from."""
    origin = origin_of(folder)
    if origin is None:
        return np.memmap(folder / name, np.uint8, "r").view(np.ndarray)
    return RemoteArray(origin, name, 0, origin.sizes[name], np.dtype(np.uint8))
