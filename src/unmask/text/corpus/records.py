"""Records: the objects of a .jsonl file and the rows of a .csv file."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from unmask.errors import UserError, unknown
from unmask.text.corpus.decompress import LINE, lines
from unmask.text.corpus.formats import format_of
from unmask.untrusted import parse_json


class Record(NamedTuple):
    content: dict[str, Any]
    where: str  # its line and file, for error messages
    at: int  # bytes of the file read so far, for progress


def objects(path: Path) -> Iterator[Record]:
    """The objects of a .jsonl file, plain or compressed; empty lines are skipped."""
    for number, (line, at) in enumerate(lines(path), 1):
        if not line.strip():
            continue
        where = f"line {number} of {path}"
        content = parse_json(line, where, strict=False)
        if not isinstance(content, dict):
            raise UserError(f"{where} is not a JSON object but {line[:40]!r}.")
        yield Record(content, where, at)


class TableRow(NamedTuple):
    cells: list[str]
    where: str  # its line and file, for error messages
    at: int  # bytes of the file read so far, for progress


def rows_of(path: Path) -> Iterator[TableRow]:
    """The rows of a .csv or .tsv file, plain or compressed, the first line included."""
    csv.field_size_limit(LINE)  # the library's default is 128 kB
    at = 0

    def fed() -> Iterator[str]:
        nonlocal at
        for line in lines(path):
            at = line.at
            yield line.text + "\n"

    tabs = format_of(path.name)[1] == "tsv"
    table = csv.reader(fed(), delimiter="\t" if tabs else ",", strict=not tabs)
    while True:
        begins = table.line_num + 1
        try:
            cells = next(table, None)
        except csv.Error as error:
            raise UserError(f"line {begins} of {path} is not CSV: {_fault(str(error))}") from None
        if cells is None:
            return
        yield TableRow(cells, f"line {table.line_num} of {path}", at)


def _fault(error: str) -> str:
    """What the csv library says, in words, and what to do."""
    if "new-line" in error:
        return "a carriage return without a line feed. Convert old line ends, for example: tr '\\r' '\\n'"
    if "unexpected end" in error:
        return 'a quote (") opens a field and none closes it. Close it, or double a quote that belongs to the text.'
    if "expected after" in error:
        return 'text follows the quote (") that closes a field. Double a quote that belongs to the text.'
    return f"{error}."


def check_text(text: str, where: str) -> str:
    """The text, if it can be written as UTF-8: JSON can hold half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: the text has half of a surrogate pair (\\ud800 to \\udfff): remove it.") from None
    return text


def records(path: str | Path, *fields: str) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file; each must have these fields, and text in them."""
    for content, where, _ in objects(existing(path)):
        for field in fields:
            if field not in content:
                raise UserError(f"{where}: {unknown('field', field, content)}")
            if not isinstance(content[field], str):
                raise UserError(f"{where}: field {field!r} is not text but {content[field]!r:.40}.")
            check_text(content[field], where)
        yield content


def existing(path: str | Path) -> Path:
    """The path of a file that is there."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    return path
