"""Texts with labels, from .jsonl or .csv: what a classifier learns from."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from unmask.errors import UserError, unknown
from unmask.text.corpus.decompress import lines
from unmask.text.corpus.documents import format_of


def labelled(path: str | Path, *, text: str = "text", label: str = "label") -> list[tuple[str, str]]:
    """(text, label) of every record; a label may be a number or a truth value in .jsonl."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    kind = format_of(path.name)[0]
    if kind not in ("jsonl", "csv"):
        raise UserError(f"labelled texts are read from .jsonl, .csv or .tsv; saw {path.name}.")
    found = []
    for where, record in _json(path) if kind == "jsonl" else _csv(path):
        for field in (text, label):
            if field not in record:
                raise UserError(f"{where}: {unknown('field', field, map(str, record))} Use --text and --label.")
        if not isinstance(record[text], str) or not isinstance(record[label], str | int | bool):
            raise UserError(f"{where}: field {text!r} must be text and {label!r} a name or a whole number.")
        if record[text]:
            found.append((str(record[text]), str(record[label])))
    if not found:
        raise UserError(f"{path} holds no labelled text.")
    return found


def _json(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    for number, (line, _) in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"line {number} of {path} is not JSON: {error}.") from None
        if not isinstance(record, dict):
            raise UserError(f"line {number} of {path} is not a JSON object but {line[:40]!r}.")
        yield f"line {number} of {path}", record


def _csv(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    fed = (line + "\n" for line, _ in lines(path))
    table = csv.DictReader(fed, delimiter="\t" if format_of(path.name)[1] == "tsv" else ",")
    for record in table:
        where = f"line {table.line_num} of {path}"
        if None in record or None in record.values():
            raise UserError(f"{where} has other columns than the first line.")
        yield where, dict(record)
