"""Read documents from files: whole files, lines, paragraphs, separators; records of jsonl, csv, parquet, FASTA.

A long document is yielded in pieces, which bounds the memory. Pieces are cut before white space, where the usual
tokenizers cut too, so the tokens are those of the whole document.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unmask.errors import UserError, unknown
from unmask.text.corpus.dataset import DataSet
from unmask.text.corpus.decompress import Chunk, chunks, lines, needs
from unmask.text.corpus.formats import format_of
from unmask.text.corpus.records import check_text, objects, rows_of

PIECE = 1 << 16  # characters; longer documents are yielded in pieces of about this size
SEPARATOR = "<|endoftext|>"
UNITS = ("auto", "file", "line", "paragraph", "separator")


class Piece(NamedTuple):
    text: str
    last: bool  # whether the document ends here
    at: int  # bytes of the file read so far, for progress


@dataclass(frozen=True)
class Layout:
    """How documents are laid out in files."""

    documents: str = "auto"  # unit in .txt: file, line, paragraph, separator; auto: separator, else file
    separator: str = SEPARATOR  # text between the documents of a .txt file
    field: str = "text"  # field of .jsonl, column of .csv or .parquet (a number if a .csv has no header)

    def __post_init__(self) -> None:
        if self.documents not in UNITS:
            raise unknown("unit of documents", self.documents, UNITS)
        if not self.separator:
            raise UserError("the separator between documents is empty; use --documents file, or give a separator")


def document_pieces(path: Path, layout: Layout) -> Iterator[Piece]:
    """The documents of one file, in pieces; a file of unknown ending is read as text."""
    readers: dict[str, Callable[[Path, Layout], Iterator[Piece]]] = {
        "text": _text,
        "jsonl": _jsonl,
        "csv": _csv,
        "parquet": _parquet,
        "fasta": _fasta,
    }
    return readers[format_of(path.name)[0] or "text"](path, layout)


def hub_pieces(data: DataSet, field: str) -> Iterator[Piece]:
    """The documents of a data set on the hub, streamed."""
    for row in data.rows():
        yield from _whole(_field(row, field, f"data set {data.name!r}"), 0)


def _text(path: Path, layout: Layout) -> Iterator[Piece]:
    stream = chunks(path)
    unit = layout.documents
    if unit == "auto":
        first = next(stream, None)
        if first is None:
            return
        unit = "separator" if layout.separator in first.text else "file"
        stream = _again(first, stream)
    if unit == "file":
        yield from _joined(stream)
    else:
        between = {"line": "\n", "paragraph": r"\r?\n[ \t]*\r?\n", "separator": re.escape(layout.separator)}
        longest = 64 if unit == "paragraph" else len(layout.separator)
        yield from _split(stream, re.compile(between[unit]), longest)


def _again(first: Chunk, rest: Iterator[Chunk]) -> Iterator[Chunk]:
    yield first
    yield from rest


def _joined(stream: Iterator[Chunk]) -> Iterator[Piece]:
    """A whole stream as one document."""
    held, at = "", 0
    for text, at in stream:
        *cut, held = _cuts(held + text)
        for piece in cut:
            yield Piece(piece, False, at)
    yield Piece(held, True, at)


def _split(stream: Iterator[Chunk], between: re.Pattern[str], longest: int) -> Iterator[Piece]:
    """Split a stream into documents without the white space around them; no separator is longer than `longest`."""
    held, at, begun = "", 0, False
    for text, at in stream:
        *whole, held = between.split(held + text)
        for document in whole:
            yield from _trimmed(document, at, begun)
            begun = False
        # Text that may be the start of a separator is held back, so that no cut falls inside a separator.
        *cut, held = _cuts(held, spare=longest)
        for piece in cut:
            yield Piece(piece if begun else piece.lstrip(), False, at)
            begun = True
    yield from _trimmed(held, at, begun)


def _trimmed(text: str, at: int, begun: bool) -> Iterator[Piece]:
    yield from _whole(text.rstrip() if begun else text.strip(), at)


def _whole(text: str, at: int) -> Iterator[Piece]:
    """A document that is already in memory."""
    *cut, rest = _cuts(text)
    for piece in cut:
        yield Piece(piece, False, at)
    yield Piece(rest, True, at)


def _cuts(text: str, *, spare: int = 0) -> list[str]:
    """A text cut into pieces, each before the last run of white space it could end with, if there is one."""
    cut, start = [], 0
    while len(text) - start > PIECE + spare:
        end = max(text.rfind(" ", start, start + PIECE), text.rfind("\n", start, start + PIECE))
        while end > start and text[end - 1].isspace():
            end -= 1
        end = end if end > start else start + PIECE
        cut.append(text[start:end])
        start = end
    return [*cut, text[start:]]


def _jsonl(path: Path, layout: Layout) -> Iterator[Piece]:
    for content, where, at in objects(path):
        yield from _whole(check_text(_field(content, layout.field, where), where), at)


def _field(record: dict, field: str, where: str) -> str:
    if field not in record:
        raise UserError(f"{where}: {unknown('field', field, map(str, record))} Choose one with --field.")
    value = record[field]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: field {field!r} is not text but {type(value).__name__}. Choose with --field.")
    return value


def _csv(path: Path, layout: Layout) -> Iterator[Piece]:
    column = int(layout.field) - 1 if re.fullmatch("[0-9]{1,6}", layout.field) else None
    for row, where, at in rows_of(path):
        if column is None:
            if layout.field not in row:
                raise UserError(f"{where}: {unknown('column', layout.field, row)} Choose one with --field.")
            column = row.index(layout.field)
        elif row:
            if not 0 <= column < len(row):
                raise UserError(f"{where} has {len(row)} columns; column {column + 1} was expected")
            yield from _whole(row[column], at)


def _parquet(path: Path, layout: Layout) -> Iterator[Piece]:
    arrow = needs("pyarrow", f"reading {path.name}")
    parquet = needs("pyarrow.parquet", f"reading {path.name}")
    try:
        schema = parquet.read_schema(path)
        if layout.field not in schema.names:
            raise UserError(f"{path}: {unknown('column', layout.field, schema.names)} Choose one with --field.")
        plain = arrow.types.is_string(schema.field(layout.field).type)
        with parquet.ParquetFile(path, read_dictionary=[layout.field] if plain else None) as table:
            done, total, size = 0, max(table.metadata.num_rows, 1), path.stat().st_size
            for batch in table.iter_batches(batch_size=1024, columns=[layout.field]):
                done += batch.num_rows
                for value in batch.column(0):  # one text at a time: a few bytes can stand for many long ones
                    record = {layout.field: value.as_py()}
                    yield from _whole(_field(record, layout.field, str(path)), size * done // total)
    except UserError:
        raise
    except (OSError, ValueError, OverflowError, arrow.ArrowException) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _fasta(path: Path, layout: Layout) -> Iterator[Piece]:
    """A sequence is a document; its name is dropped, its lines are joined."""
    held: list[str] = []
    length, at, begun = 0, 0, False
    for number, (line, at) in enumerate(lines(path), 1):
        if line.startswith(">"):
            if begun:
                yield Piece("".join(held), True, at)
            held, length, begun = [], 0, True
        elif not begun and line.strip():
            raise UserError(f"{path} is not FASTA: line {number} is {line[:40]!r}, not a name after '>'")
        else:
            held.append(line.strip())
            length += len(held[-1])
            if length >= PIECE:
                for piece in _cuts("".join(held), spare=PIECE):  # a chromosome may be one line
                    yield Piece(piece, False, at)
                held, length = [], 0
    if begun:
        yield Piece("".join(held), True, at)
