"""Records: the objects of a .jsonl file, and the labelled texts of a .jsonl or .csv file."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from unmask.errors import UserError, unknown
from unmask.text.corpus.decompress import lines
from unmask.text.corpus.formats import format_of


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
        try:
            content = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where} is not JSON: {error}.") from None
        if not isinstance(content, dict):
            raise UserError(f"{where} is not a JSON object but {line[:40]!r}.")
        yield Record(content, where, at)


def records(path: str | Path, *fields: str) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file; each must have these fields, and text in them."""
    for content, where, _ in objects(_existing(path)):
        for field in fields:
            if field not in content:
                raise UserError(f"{where}: {unknown('field', field, content)}")
            if not isinstance(content[field], str):
                raise UserError(f"{where}: field {field!r} is not text but {content[field]!r:.40}.")
        yield content


def labelled(path: str | Path, *, text: str = "text", label: str = "label") -> list[tuple[str, str]]:
    """(text, label) of every record, for training a classifier; in .jsonl a label may be a number or a boolean."""
    path = _existing(path)
    kind = format_of(path.name)[0]
    if kind not in ("jsonl", "csv"):
        raise UserError(f"labelled texts are read from .jsonl, .csv or .tsv; saw {path.name}.")
    pairs = []
    for content, where, _ in objects(path) if kind == "jsonl" else _table(path):
        for field in (text, label):
            if field not in content:
                raise UserError(f"{where}: {unknown('field', field, content)} Use --text and --label.")
        if not isinstance(content[text], str) or not isinstance(content[label], str | int | bool):
            raise UserError(f"{where}: field {text!r} must be text and {label!r} a name or a whole number.")
        if content[text]:
            pairs.append((content[text], str(content[label])))
    if not pairs:
        raise UserError(f"{path} holds no labelled text.")
    return pairs


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    return path


def _table(path: Path) -> Iterator[Record]:
    """The rows of a .csv or .tsv file as objects, by the names in its first line."""
    fed = (line + "\n" for line, _ in lines(path))
    table = csv.DictReader(fed, delimiter="\t" if format_of(path.name)[1] == "tsv" else ",")
    for row in table:
        where = f"line {table.line_num} of {path}"
        if None in row or None in row.values():
            raise UserError(f"{where} has other columns than the first line.")
        yield Record(dict(row), where, 0)
