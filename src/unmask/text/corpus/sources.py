"""Sources of documents: a file, a folder, a glob, standard input, a corpus by name, or a data set on the hub."""

import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from glob import glob, has_magic
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory

from unmask import storage
from unmask.errors import UserError, how_many
from unmask.text.corpus import documents
from unmask.text.corpus.dataset import DataSet, Unreadable, parse_data_set
from unmask.text.corpus.detokenize import detokenizer
from unmask.text.corpus.documents import FileLayout, Piece
from unmask.text.corpus.formats import COMPRESSIONS, FORMATS, format_of
from unmask.text.corpus.intervals import (
    SPLITS,
    check_intervals,
    fingerprint_of,
    read_bed,
    region_pieces,
    sequence_places,
)
from unmask.text.corpus.named import NAMED, Named, complete_layout, corpus_name, home, part_of, repair_documents


@dataclass(frozen=True)
class Source:
    """A file, or a data set on the hub, and its name in the manifest."""

    name: str
    path: Path | None  # None for the hub
    bytes: int  # size on disk, 0 for the hub
    split: str | None = None  # the split that its name contains; None: the names contain no splits
    read: Callable[[FileLayout], Iterator[Piece]] | None = None  # how a named corpus is read
    mix: int = 0  # the text of a mixture that it belongs to, from 1; 0: there is no mixture

    def pieces(self, layout: FileLayout) -> Iterator[Piece]:
        if self.read is not None:
            return self.read(layout)
        if self.path is None:
            return documents.hub_pieces(parse_data_set(self.name), layout)
        return documents.document_pieces(self.path, layout)

    def sha256(self) -> str:
        """The hash of a file's bytes, or of a hub data set's name and commit."""
        if self.path is None:
            return parse_data_set(self.name).sha256()
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from None


@contextmanager
def gather(where: str | Path, layout: FileLayout | None = None) -> Iterator[list[Source]]:
    """The sources at a place, sorted by name: a path, a folder, a glob, `-` for standard input, `lm1b`, `hf:NAME`, s3://.

    A mixture, `a.txt:3 b.jsonl:1`, has the sources of several places. A path that exists is read, even if it has the
    name of a corpus. With intervals in the layout, the sources are those regions of its FASTA files, by split.

    with gather("my_texts/") as sources: ...
    """
    if places := weighted_places(str(where)):
        with ExitStack() as held:
            yield mixed_sources(places, layout, held)
        return
    place = storage.local_place(str(where), lambda name: format_of(name)[0] is not None)
    if layout is not None and layout.intervals:
        yield _regions(_files(place), layout)
    elif place == "-":
        with TemporaryDirectory(prefix="unmask-") as folder:
            yield [_spool_input(Path(folder))]
    elif place.startswith("hf:"):
        yield [Source(parse_data_set(place).pinned().name, None, 0)]
    elif (name := corpus_name(place)) is not None and not Path(place).exists():
        yield _named_sources(name)
    else:
        yield _files(place)


def weighted_places(data: str) -> list[tuple[str, float]]:
    """The places and weights of a mixture; empty: the data are at one place."""
    words = data.split()
    halves = [word.rpartition(":") for word in words]
    if len(words) < 2 or Path(data).exists() or not any(place and is_weight(weight) for place, _, weight in halves):
        return []
    places = [(place, float(weight)) if place and is_weight(weight) else ("", 0.0) for place, _, weight in halves]
    for word, (place, weight) in zip(words, places, strict=True):
        if not place or not weight > 0:
            raise UserError(f"a mixture is written PLACE:WEIGHT PLACE:WEIGHT, with weights above 0; saw {word!r}.")
    return places


def is_weight(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def mixed_sources(places: Sequence[tuple[str, float]], layout: FileLayout | None, held: ExitStack) -> list[Source]:
    """The sources of a mixture, each with the number of its text and the place in its name."""
    mixed: list[Source] = []
    for number, (place, _) in enumerate(places, 1):
        for source in held.enter_context(gather(place, layout)):
            name = place if Path(place).is_file() else f"{place.rstrip('/')}/{source.name}"
            mixed.append(replace(source, name=name, mix=number))
    if len({source.name for source in mixed}) < len(mixed):
        raise UserError("a mixture reads no file twice: give each place once, with its weight.")
    return mixed


def texts(sources: list[Source], layout: FileLayout, *, limit: int | None = None) -> Iterator[str]:
    """The first `limit` characters or so of the sources, to build a vocabulary on."""
    left = float("inf") if limit is None else limit
    for source in sources:
        for piece in source.pieces(layout):
            yield piece.text
            left -= len(piece.text)
            if left <= 0:
                return


def placed_texts(sources: Sequence[Source], layout: FileLayout) -> Iterator[tuple[str, str]]:
    """The documents of the sources, each with its place in words, for error messages; FASTA sequences have a name."""
    for source in sources:
        if source.path is not None and format_of(source.path.name)[0] == "fasta":
            yield from named_places(source.path)
            continue
        number, held = 1, ""
        for piece in source.pieces(layout):
            held += piece.text
            if piece.last:
                yield f"{source.path or source.name}, document {number}", held
                number, held = number + 1, ""


def named_places(path: Path) -> Iterator[tuple[str, str]]:
    """The sequences of a FASTA file by name."""
    held = ""
    for name, piece in documents.named_pieces(path):
        held += piece.text
        if piece.last:
            yield f"{path}, sequence {name.text!r}", held
            held = ""


def check_readable(sources: Sequence[Source], layout: FileLayout) -> None:
    """Read the first document of each file: a wrong column or a file of another kind is noticed before any work."""
    for source in sources:
        if source.path is not None:
            next(source.pieces(layout), None)


def _named_sources(name: str) -> list[Source]:
    """The sources of a named corpus: its files below the data root, else the hub."""
    corpus, folder = NAMED[name], home(name)
    files = corpus.files_in(folder)
    alone = set(files) == {"train"}  # then the usual share of the documents is held out
    sources = []
    for split, path in ((split, path) for split, paths in files.items() for path in paths):
        part = corpus.characters.get(split) if all(path in paths for paths in files.values()) else None
        shown = f"{name}/{path.relative_to(folder).as_posix()}" + ("[{}:{}]".format(*part) if part else "")
        read = partial(_as_published, corpus, part, partial(corpus.pieces, path))
        sources.append(Source(shown, path, path.stat().st_size, None if alone else split, read))
    if sources:
        return sorted(sources, key=lambda source: source.name)
    with _advice(corpus, name):
        pinned = corpus.hub.pinned()
    for split, of_hub in corpus.splits.items():
        data, part = replace(pinned, split=of_hub), corpus.characters.get(split)
        shown = data.name + ("[{}:{}]".format(*part) if part else "")
        read = partial(_as_published, corpus, part, partial(_from_hub, corpus, name, data))
        sources.append(Source(shown, None, 0, split, read))
    return sources


def _as_published(
    corpus: Named, part: tuple[int, int] | None, read: Callable[[FileLayout], Iterator[Piece]], layout: FileLayout
) -> Iterator[Piece]:
    """A split's documents, detokenized as the paper does."""
    pieces = read(layout)
    if part is not None:
        return part_of(pieces, *part)
    return pieces if corpus.detokenizer == "none" else repair_documents(pieces, detokenizer(corpus.detokenizer))


def _from_hub(corpus: Named, name: str, data: DataSet, layout: FileLayout) -> Iterator[Piece]:
    with _advice(corpus, name):
        yield from documents.hub_pieces(data, complete_layout(layout, corpus.layout))


@contextmanager
def _advice(corpus: Named, name: str) -> Iterator[None]:
    try:
        yield
    except Unreadable as error:
        raise UserError(f"{error} {corpus.advice(name)}") from None


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
        raise UserError(
            f"no data at {place}: the path does not exist. A data set on the hub is written hf:NAME; corpora with "
            f"names of their own: {', '.join(NAMED)}."
        )
    for path in paths:
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise UserError(f"the file name {str(path)!r} is not UTF-8: rename the file.") from None
    sources = [Source(path.relative_to(root).as_posix(), path, path.stat().st_size) for path in paths]
    if not any(source.bytes for source in sources):
        raise UserError(f"the data at {place} is empty: {how_many(len(sources), 'file')} of 0 bytes.")
    return _named_splits(sorted(sources, key=lambda source: source.name))


def _regions(sources: list[Source], layout: FileLayout) -> list[Source]:
    """The regions of FASTA files that a BED file lists: one source for each file and split."""
    bed, paths = Path(layout.intervals), [source.path for source in sources if source.path is not None]
    for path in paths:
        if format_of(path.name)[0] != "fasta":
            raise UserError(f"--intervals are regions of FASTA files, and {path} is not one (.fa, .fasta, .fna).")
    intervals, places = read_bed(bed), sequence_places(paths)
    check_intervals(intervals, places, layout)
    regions = []
    for source in sources:
        if source.path is None:
            continue
        mine = [one for one in intervals if places[one.name].path == source.path]
        for split in dict.fromkeys(one.split for one in mine):
            some = [one for one in mine if one.split == split]
            name = f"{source.name}[{split or 'all'} of {bed.name} {fingerprint_of(bed)}]"
            read = partial(region_pieces, source.path, some)
            regions.append(Source(name, source.path, source.bytes, split, read))
    return sorted(regions, key=lambda source: source.name)


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


def _spool_input(folder: Path) -> Source:
    """Standard input, kept in a file so that it can be read twice."""
    path = folder / "stdin"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    if not path.stat().st_size:
        raise UserError("standard input is empty")
    return Source("stdin", path, path.stat().st_size)
