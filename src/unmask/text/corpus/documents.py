"""Read documents from files: whole files, lines, paragraphs, separators; records of jsonl, csv, parquet, FASTA.

A long document is yielded in pieces, which bounds the memory. Pieces are cut before white space, where the usual
tokenizers cut too, so the tokens are those of the whole document.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from unmask.errors import UserError, unknown
from unmask.text.corpus.chat_template import ChatTemplate
from unmask.text.corpus.dataset import DataSet
from unmask.text.corpus.decompress import Chunk, chunks, lines, needs
from unmask.text.corpus.formats import format_of
from unmask.text.corpus.records import Record, check_text, objects, rows_of
from unmask.text.corpus.turns import Exchange, exchanges, exchanges_in

PIECE = 1 << 16  # characters; longer documents are yielded in pieces of about this size
SEPARATOR = "<|endoftext|>"
UNITS = {
    "auto": "split at the separator if the file has one, else the whole file",
    "file": "the whole file is one document",
    "line": "each line is a document",
    "paragraph": "what is between blank lines is a document",
    "separator": "what is between separators is a document",
}


class Piece(NamedTuple):
    text: str
    last: bool  # whether the document ends here
    at: int  # bytes of the file read so far, for progress
    speaker: str = ""  # of a whole text that is read and not learned, what an answer answers; empty: learned


@dataclass(frozen=True)
class FileLayout:
    """How documents are laid out in files."""

    documents: str = "auto"  # unit in .txt: file, line, paragraph, separator; auto: separator, else file
    separator: str = SEPARATOR  # text between the documents of a .txt file
    field: str = "text"  # field of .jsonl, column of .csv or .parquet (a number if a .csv has no header)
    given: str = ""  # pairs: field of the prompt, which is read and not learned; the answer is --answer
    answer: str = ""  # field of the answer, or of a list of chat messages; empty: --field
    template: str = ""  # chat template of messages: roles, chatml or a jinja file; none: pairs, each with an eos
    intervals: str = ""  # BED file: the regions of a FASTA file to read, and in its fourth column their splits
    stretch: int = 0  # bases to which each interval is stretched, as Caduceus does (1048576): splits then share bases
    window: int = 0  # with --stretch: bases of the windows into which it is cut

    def __post_init__(self) -> None:
        if self.pairs and self.intervals:
            raise UserError("--intervals are regions of sequences, and --given and --answer are for pairs: give one.")
        if (self.stretch or self.window) and not self.intervals:
            raise UserError("--stretch and --window change the intervals of a BED file: give --intervals too.")
        if not 0 <= self.window <= self.stretch or bool(self.stretch) != bool(self.window):
            raise UserError(
                "--stretch is cut into windows of --window bases: give both, the window not longer; saw "
                f"{self.stretch} and {self.window}. Without them rows are cut within the intervals, by --length of "
                "`unmask train`."
            )
        if self.documents not in UNITS:
            raise unknown("unit of documents", self.documents, UNITS)
        if not self.separator:
            raise UserError("the separator between documents is empty; use --documents file, or give a separator")

    @property
    def pairs(self) -> bool:
        """Whether documents are answers with what is given."""
        return bool(self.given or self.answer or self.template)

    @property
    def answer_field(self) -> str:
        return self.answer or ("messages" if self.template and not self.given else self.field)

    @property
    def chat(self) -> ChatTemplate | None:
        return ChatTemplate.named(self.template) if self.template else None


def document_pieces(path: Path, layout: FileLayout) -> Iterator[Piece]:
    """The documents of one file, in pieces; a file of unknown ending is read as text."""
    if layout.pairs:
        return (piece for one in exchanges(path, layout.given, layout.answer_field) for piece in exchange_pieces(one))
    readers: dict[str, Callable[[Path, FileLayout], Iterator[Piece]]] = {
        "text": _text,
        "jsonl": _jsonl,
        "csv": _csv,
        "parquet": _parquet,
        "fasta": _fasta,
        "smiles": _smiles,
    }
    return readers[format_of(path.name)[0] or "text"](path, layout)


def exchange_pieces(exchange: Exchange) -> Iterator[Piece]:
    """What is given, each turn by itself, and the answer."""
    for turn in exchange.given:
        yield Piece(turn.text, False, exchange.at, turn.role or "user")
    yield Piece(exchange.answer, True, exchange.at)


def hub_pieces(data: DataSet, layout: FileLayout) -> Iterator[Piece]:
    where = f"data set {data.name!r}"
    for row in data.rows():
        if layout.pairs:
            for one in exchanges_in(Record(row, where, 0), layout.given, layout.answer_field):
                yield from exchange_pieces(one) if one.answer else ()
        else:
            yield from cut_up(_field(row, layout.field, where), 0)


def _text(path: Path, layout: FileLayout) -> Iterator[Piece]:
    stream = chunks(path)
    unit = layout.documents
    if unit == "auto":
        first = next(stream, None)
        if first is None:
            return
        unit = "separator" if layout.separator in first.text else "file"
        stream = chain([first], stream)
    if unit == "file":
        yield from _join_stream(stream)
    else:
        between = {"line": "\n", "paragraph": r"\r?\n[ \t]*\r?\n", "separator": re.escape(layout.separator)}
        longest = 64 if unit == "paragraph" else len(layout.separator)
        yield from _split_stream(stream, re.compile(between[unit]), longest)


def _smiles(path: Path, layout: FileLayout) -> Iterator[Piece]:
    """A molecule is the first word of a line; its name after it is dropped."""
    if layout.documents != "auto":
        yield from _text(path, layout)
        return
    for line, at in lines(path):
        if words := line.split(maxsplit=1):
            yield Piece(words[0], True, at)


def _join_stream(stream: Iterator[Chunk]) -> Iterator[Piece]:
    """A whole stream as one document."""
    held, at = "", 0
    for text, at in stream:
        *cut, held = _cuts(held + text)
        for piece in cut:
            yield Piece(piece, False, at)
    yield Piece(held, True, at)


def _split_stream(stream: Iterator[Chunk], between: re.Pattern[str], longest: int) -> Iterator[Piece]:
    """Split a stream into documents without the white space around them; no separator is longer than `longest`."""
    held, at, begun = "", 0, False
    for text, at in stream:
        *whole, held = between.split(held + text)
        for document in whole:
            yield from _trim(document, at, begun)
            begun = False
        # Text that may be the start of a separator is held back, so that no cut falls inside a separator.
        *cut, held = _cuts(held, spare=longest)
        for piece in cut:
            yield Piece(piece if begun else piece.lstrip(), False, at)
            begun = True
    yield from _trim(held, at, begun)


def _trim(text: str, at: int, begun: bool) -> Iterator[Piece]:
    yield from cut_up(text.rstrip() if begun else text.strip(), at)


def cut_up(text: str, at: int) -> Iterator[Piece]:
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


def _jsonl(path: Path, layout: FileLayout) -> Iterator[Piece]:
    for content, where, at in objects(path):
        yield from cut_up(check_text(_field(content, layout.field, where), where), at)


def _field(record: dict, field: str, where: str) -> str:
    if field not in record:
        raise UserError(f"{where}: {unknown('field', field, map(str, record))} Choose one with --field.")
    value = record[field]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: field {field!r} is not text but {type(value).__name__}. Choose with --field.")
    return value


def _csv(path: Path, layout: FileLayout) -> Iterator[Piece]:
    column = int(layout.field) - 1 if re.fullmatch("[0-9]{1,6}", layout.field) else None
    for row, where, at in rows_of(path):
        if column is None:
            if layout.field not in row:
                raise UserError(f"{where}: {unknown('column', layout.field, row)} Choose one with --field.")
            column = row.index(layout.field)
        elif row:
            if not 0 <= column < len(row):
                raise UserError(f"{where} has {len(row)} columns; column {column + 1} was expected")
            yield from cut_up(row[column], at)


def _parquet(path: Path, layout: FileLayout) -> Iterator[Piece]:
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
                    yield from cut_up(_field(record, layout.field, str(path)), size * done // total)
    except UserError:
        raise
    except (OSError, ValueError, OverflowError, arrow.ArrowException) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _fasta(path: Path, layout: FileLayout) -> Iterator[Piece]:
    """A sequence is a document; its name is dropped, its lines are joined."""
    return (piece for _, piece in named_pieces(path))


class SequenceName(NamedTuple):
    text: str  # the first word of the line after ">"
    number: int  # of the sequence in its file


def named_pieces(path: Path) -> Iterator[tuple[SequenceName, Piece]]:
    """The pieces of the sequences of a FASTA file without white space, each with the name of its sequence."""
    name: SequenceName | None = None
    held: list[str] = []
    size, at, empty = 0, 0, True
    for head, text, at in _heads_and_bodies(path):
        if head:
            if name is not None:
                yield name, Piece("".join(held), True, at)
            words = text.split(maxsplit=1)
            name = SequenceName(words[0] if words else "", 0 if name is None else name.number + 1)
            held, size, empty = [], 0, True
            continue
        letters = "".join(text.split())
        if name is None and letters:
            number, line = next((i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip())
            raise UserError(f"{path} is not FASTA: line {number} is {line[:40]!r}, not a name after '>'")
        empty = empty and not letters
        held.append(letters)
        size += len(letters)
        if name is not None and size >= PIECE:
            for piece in _cuts("".join(held)):
                yield name, Piece(piece, False, at)
            held, size = [], 0
    if name is not None:
        if empty:
            raise UserError(
                f"{path} ends after the name of a sequence, {name.text!r}: the file is cut short. Copy it again, or "
                "remove its last line."
            )
        yield name, Piece("".join(held), True, at)


class FastaStretch(NamedTuple):
    head: bool  # a whole line that begins with ">", without it; else lines of a sequence, or parts of them
    text: str
    at: int  # bytes of the file read so far


def _heads_and_bodies(path: Path) -> Iterator[FastaStretch]:
    """A FASTA file cut at the lines that begin with ">"; what is between them comes as it is read, for speed."""
    head: list[str] | None = None  # of a name that the last chunk's end has cut
    begins = True  # at the start of a line
    for text, at in chunks(path):
        start = 0
        while start < len(text):
            if head is None and begins and text[start] == ">":
                head, start = [], start + 1
            end = text.find("\n" if head is not None else "\n>", start)
            after = len(text) if end < 0 else end + 1
            if head is None:
                yield FastaStretch(False, text[start:after], at)
            else:
                head.append(text[start:after])
                if end >= 0:
                    yield FastaStretch(True, "".join(head), at)
                    head = None
            begins = text[after - 1] == "\n"
            start = after
    if head is not None:
        yield FastaStretch(True, "".join(head), at)
