"""Examples: texts, or pairs of texts, each with a label, from .csv, .tsv, .jsonl and FASTA files.

In a .tsv file a quote is a character like any other: with the quoting of .csv, a sentence that begins with a quote
would silently join all lines up to the next one. In FASTA the label is a word `label=VALUE` after the name.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from unmask.errors import UserError, unknown
from unmask.text.corpus.decompress import lines
from unmask.text.corpus.formats import format_of
from unmask.text.corpus.records import Record, TableRow, check_text, existing, objects, rows_of

USUAL = ("text", "sentence", "sequence", "seq")  # names that the column of the text usually has
ADVICE = "Choose with --field, --pair and --label."
log = logging.getLogger("unmask.examples")  # without a handler of yours, it writes to standard error


@dataclass(frozen=True)
class Columns:
    """Where texts and labels are in the data."""

    field: str = "auto"  # field or column of the text; auto: text, sentence, sequence or seq
    pair: str = ""  # field or column of a second text; none: single texts
    label: str = "label"  # field or column of the label; in FASTA a word label=VALUE after the name

    @property
    def numbered(self) -> bool:
        """Whether columns are numbers, from 1: the file has no header."""
        return bool(re.fullmatch("[0-9]{1,6}", self.field))


class Example(NamedTuple):
    text: str
    pair: str | None
    label: str | None  # None: it has none
    where: str  # its line and file, for error messages
    name: str = ""  # of a FASTA record

    @property
    def texts(self) -> str | tuple[str, str]:
        return self.text if self.pair is None else (self.text, self.pair)

    @property
    def parts(self) -> tuple[str, ...]:
        """Its texts: one, or the two of a pair."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


def examples(path: str | Path, columns: Columns, *, labels: bool = True, broken: bool = False) -> list[Example]:
    """The examples of a file; with `labels`, each must have one, else it may.

    `broken`: the file is known to have rows that break off; they are left out, and a message says how many.
    """
    return list(read_examples(path, columns, labels=labels, broken=broken))


def read_examples(
    path: str | Path, columns: Columns, *, labels: bool = True, broken: bool = False
) -> Iterator[Example]:
    """The examples of a file, one after the other."""
    path = existing(path)
    kind = format_of(path.name)[0]
    if kind not in ("jsonl", "csv", "fasta"):
        raise UserError(f"labelled texts are read from .jsonl, .csv, .tsv and .fasta; saw {path.name}.")
    if kind == "fasta" and columns.pair:
        raise UserError(f"{path} is FASTA, which holds no pairs of texts: leave out --pair, or use a .tsv file.")
    left: list[str] = []  # where rows break off
    if kind == "fasta":
        columns = replace(columns, field="sequence" if columns.field in ("auto", *USUAL) else columns.field)
        examples_by_name = (example(row, columns, labels=labels)._replace(name=name) for name, row in sequences(path))
    else:
        rows = table(path, columns, left if broken else None) if kind == "csv" else objects(path)
        examples_by_name = (example(row, columns, labels=labels) for row in check_alike(rows, columns.label))
    first = next(examples_by_name, None)
    if first is None:
        raise UserError(f"{path} holds no labelled text.")
    yield first
    yield from examples_by_name
    if left:
        log.warning(
            "unmask: %d rows of %s have too few columns and were left out, first %s", len(left), path, left[0]
        )


def check_alike(rows: Iterable[Record], name: str) -> Iterator[Record]:
    """The rows; true and false beside other labels are refused: nobody can tell whether true and 1 are the same."""
    first: dict[bool, Record] = {}
    for row in rows:
        if row.content.get(name) is not None:
            first.setdefault(isinstance(row.content[name], bool), row)
        if len(first) == 2:
            logical, other = first[True], first[False]
            raise UserError(
                f"{logical.where}: the label is {str(logical.content[name]).lower()}, and that of {other.where} is "
                f"{other.content[name]!r:.40}. Write all labels as true and false, or none."
            )
        yield row


def example(row: Record, columns: Columns, *, labels: bool = True) -> Example:
    content, where = row.content, row.where
    text = text_of(content, choose_field(content, columns.field, where), where)
    pair = text_of(content, columns.pair, where) if columns.pair else None
    if columns.label not in content:
        if labels:
            raise UserError(f"{where}: {unknown('field', columns.label, content)} {ADVICE}")
        return Example(text, pair, None, where)
    label = content[columns.label]
    if not isinstance(label, str | int | float) or (isinstance(label, str) and not label.strip()):
        raise UserError(f"{where}: the label must be a name or a number; saw {label!r:.40}. {ADVICE}")
    name = str(label).lower() if isinstance(label, bool) else str(label).strip()
    return Example(text, pair, check_text(name, where), where)


def choose_field(content: dict[str, Any], name: str, where: str) -> str:
    if name != "auto":
        return name
    usual = next((one for one in USUAL if one in content), None)
    if usual is None:
        raise UserError(f"{where}: {unknown('field', 'text', content)} {ADVICE}")
    return usual


def text_of(content: dict[str, Any], name: str, where: str) -> str:
    if name not in content:
        raise UserError(f"{where}: {unknown('field', name, content)} {ADVICE}")
    if not isinstance(content[name], str):
        raise UserError(f"{where}: field {name!r} is not text but {content[name]!r:.40}. {ADVICE}")
    return check_text(content[name], where)


def table(path: Path, columns: Columns, left: list[str] | None = None) -> Iterator[Record]:
    """The rows of a .csv or .tsv file as objects, by the names in its first line or by the numbers of the columns.

    With `left`, rows that break off are left out, and it gets where they are; else they are refused.
    """
    plain = format_of(path.name)[1] == "tsv"
    names: Sequence[str] | None = None
    for row in rows_with_tabs(path) if plain else rows_of(path):
        if not row.cells:
            continue
        if names is None:
            names = [str(i + 1) for i in range(len(row.cells))] if columns.numbered else row.cells
            if not columns.numbered:
                continue
        if left is not None and len(row.cells) < len(names):
            left.append(row.where)
            continue
        if len(row.cells) != len(names):
            raise UserError(f"{row.where} has {len(row.cells)} columns; the first line has {len(names)}.")
        yield Record(dict(zip(names, row.cells, strict=True)), row.where, row.at)


def rows_with_tabs(path: Path) -> Iterator[TableRow]:
    """The rows of a file with tabs between its cells; empty lines have none."""
    for number, (line, at) in enumerate(lines(path), 1):
        yield TableRow(line.split("\t") if line else [], f"line {number} of {path}", at)


def sequences(path: Path) -> Iterator[tuple[str, Record]]:
    """The names of the sequences of a FASTA file, and each as an object with the words KEY=VALUE after its name."""
    head: str | None = None
    held: list[str] = []
    where, at = "", 0
    for number, (line, at) in enumerate(lines(path), 1):
        if line.startswith(">"):
            if head is not None:
                yield sequence(head, held, where, at)
            head, held, where = line[1:], [], f"line {number} of {path}"
        elif head is None and line.strip():
            raise UserError(f"{path} is not FASTA: line {number} is {line[:40]!r}, not a name after '>'")
        else:
            held.append(line.strip())
    if head is not None:
        yield sequence(head, held, where, at)


def sequence(head: str, held: Sequence[str], where: str, at: int) -> tuple[str, Record]:
    """The name and the content of a FASTA record: no word of its head takes the place of its letters."""
    words, letters = head.split(), "".join(held)
    name = words[0] if words else ""
    if not letters:
        raise UserError(
            f"{where}: the sequence {name!r} is empty. Is the file cut short? Copy it again, or remove the record."
        )
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    return name, Record({**fields, "sequence": letters}, where, at)
