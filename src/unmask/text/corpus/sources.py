"""Sources of documents: a file, a folder, a glob, standard input, or a data set on the hub."""

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from tempfile import TemporaryDirectory

from unmask.errors import UserError
from unmask.text.corpus import documents
from unmask.text.corpus.decompress import needs
from unmask.text.corpus.documents import Layout, Piece
from unmask.text.corpus.formats import COMPRESSIONS, FORMATS, format_of

SPLITS = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}


@dataclass(frozen=True)
class Source:
    """A file, or a data set on the hub, and its name in the manifest."""

    name: str
    path: Path | None  # None for the hub
    bytes: int  # size on disk, 0 for the hub
    split: str | None = None  # the split that its name contains; None: the names contain no splits

    def pieces(self, layout: Layout) -> Iterator[Piece]:
        if self.path is None:
            return documents.hub_pieces(self.name.removeprefix("hf:"), layout)
        return documents.document_pieces(self.path, layout)

    def sha256(self) -> str:
        """The hash of a file's bytes, or of a hub data set's name and revision."""
        if self.path is None:
            return _hub_sha256(self.name)
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from None


@contextmanager
def gather(where: str | Path) -> Iterator[list[Source]]:
    """The sources at a place, sorted by name: a path, a folder, a glob, `-` for standard input, `hf:NAME`.

    with gather("my_texts/") as sources: ...
    """
    place = str(where)
    if place == "-":
        with TemporaryDirectory(prefix="unmask-") as folder:
            yield [_spooled(Path(folder))]
    elif place.startswith("hf:"):
        yield [Source(place, None, 0)]
    else:
        yield _files(place)


def texts(sources: list[Source], layout: Layout, *, limit: int | None = None) -> Iterator[str]:
    """The first `limit` characters or so of the sources, to build a vocabulary on."""
    left = float("inf") if limit is None else limit
    for source in sources:
        for piece in source.pieces(layout):
            yield piece.text
            left -= len(piece.text)
            if left <= 0:
                return


def check_readable(sources: Sequence[Source], layout: Layout) -> None:
    """Read the first document of each file: a wrong column or a file of another kind is noticed before any work."""
    for source in sources:
        if source.path is not None:
            next(source.pieces(layout), None)


def _files(place: str) -> list[Source]:
    root = Path(place).expanduser()
    if root.is_dir():
        paths = [path for path in sorted(root.rglob("*")) if _is_data(path, root)]
        if not paths:
            raise UserError(
                f"the folder {root} contains no data. Searched for files ending in {', '.join(FORMATS)}, "
                f"plain or {', '.join(COMPRESSIONS)}; give a glob such as '{root}/*' to read others as text."
            )
    elif root.exists():
        if not root.is_file():
            raise UserError(f"{place} is not a regular file: it is read twice. Pipe its text in, and give `-`.")
        paths, root = [root], root.parent
    elif has_magic(place):
        paths = [Path(path) for path in sorted(glob(str(root), recursive=True)) if Path(path).is_file()]
        if not paths:
            raise UserError(f"no file matches {place}")
        root = Path(*root.parts[: next(i for i, part in enumerate(root.parts) if has_magic(part))])
    else:
        raise UserError(f"no data at {place}: the path does not exist. A data set on the hub is written hf:NAME.")
    for path in paths:
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise UserError(f"the file name {str(path)!r} is not UTF-8: rename the file.") from None
    sources = [Source(path.relative_to(root).as_posix(), path, path.stat().st_size) for path in paths]
    if not any(source.bytes for source in sources):
        raise UserError(f"the data at {place} is empty: {len(sources)} file(s) of 0 bytes")
    return _named_splits(sorted(sources, key=lambda source: source.name))


def _is_data(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.is_file() and not hidden and format_of(path.name)[0] is not None


def _named_splits(sources: list[Source]) -> list[Source]:
    """Take splits from names such as train.txt and valid.txt, if there are several files and one is for training."""
    names = [_split_in(source.name) for source in sources]
    if "train" not in names or len(sources) == 1:
        return sources
    return [
        Source(source.name, source.path, source.bytes, split or "train")
        for source, split in zip(sources, names, strict=True)
    ]


def _split_in(name: str) -> str | None:
    words = [SPLITS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLITS]
    return words[-1] if words else None


def _spooled(folder: Path) -> Source:
    """Standard input, kept in a file so that it can be read twice."""
    path = folder / "stdin"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    if not path.stat().st_size:
        raise UserError("standard input is empty")
    return Source("stdin", path, path.stat().st_size)


def _hub_sha256(name: str) -> str:
    datasets = needs("datasets", f"the data set {name!r}")
    repository, config, split = documents.hub_parts(name.removeprefix("hf:"))
    try:
        revision = datasets.load_dataset_builder(repository, config).hash
    except Exception as error:  # no such set or config, no network: the hub's message says which
        raise UserError(f"cannot read the data set {name!r} from the hub: {error}") from None
    return hashlib.sha256(f"{repository} {config} {split} {revision}".encode()).hexdigest()
