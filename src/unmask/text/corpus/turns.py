"""Turns: pairs of a given text and its answer, and conversations, from .jsonl, .csv, .tsv and .parquet files.

A field holds a text, or a list of messages, {"role": "user", "content": "Hello"} (or from, value). A conversation is
one exchange for every message of the assistant: all messages before it are given. So no answer is learned with what
was said after it in view.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unmask.errors import UserError, unknown
from unmask.text.corpus.decompress import needs
from unmask.text.corpus.examples import Columns, table
from unmask.text.corpus.formats import format_of
from unmask.text.corpus.records import Record, check_text, objects

ADVICE = "Choose the fields with --given and --answer."
ASSISTANT = ("assistant", "gpt", "model", "bot")  # roles whose messages are answers
KEYS = (("role", "content"), ("from", "value"))


class Turn(NamedTuple):
    """What somebody said."""

    role: str  # user, assistant, system, ...
    text: str

    @property
    def answers(self) -> bool:
        return self.role in ASSISTANT


class Exchange(NamedTuple):
    """An answer and what was said before it."""

    given: tuple[Turn, ...]  # without empty texts
    answer: str
    where: str  # its line and file, for error messages
    at: int = 0  # bytes of the file read so far, for progress


def exchanges(path: Path, given: str, answer: str) -> Iterator[Exchange]:
    """The exchanges of a file; those with an empty answer are left out, and a file without any other is refused."""
    seen = filled = 0
    for record in table_records(path, [name for name in (given, answer) if name]):
        for exchange in exchanges_in(record, given, answer):
            seen += 1
            filled += bool(exchange.answer)
            if exchange.answer:
                yield exchange
    if seen and not filled:
        raise UserError(f"{path}: the field {answer!r} is empty in all {seen:,} records. {ADVICE}")
    if not seen:
        raise UserError(f"{path} holds no answer to learn: no record, or no message of an assistant. {ADVICE}")


def table_records(path: Path, fields: list[str]) -> Iterator[Record]:
    kind = format_of(path.name)[0]
    if kind == "jsonl":
        return objects(path)
    if kind == "csv":
        return table(path, Columns(field=fields[-1]))
    if kind == "parquet":
        return parquet_records(path, fields)
    raise UserError(f"pairs are read from .jsonl, .csv, .tsv and .parquet; saw {path.name}.")


def parquet_records(path: Path, fields: list[str]) -> Iterator[Record]:
    arrow = needs("pyarrow", f"reading {path.name}")
    parquet = needs("pyarrow.parquet", f"reading {path.name}")
    try:
        with parquet.ParquetFile(path) as file:
            for name in fields:
                if name not in file.schema_arrow.names:
                    raise UserError(f"{path}: {unknown('column', name, file.schema_arrow.names)} {ADVICE}")
            done, total, size = 0, max(file.metadata.num_rows, 1), path.stat().st_size
            for batch in file.iter_batches(batch_size=256, columns=fields):
                for row in batch.to_pylist():
                    done += 1
                    yield Record(row, f"row {done} of {path}", size * done // total)
    except UserError:
        raise
    except (OSError, ValueError, OverflowError, arrow.ArrowException) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def exchanges_in(record: Record, given: str, answer: str) -> Iterator[Exchange]:
    """The exchanges of a record: one of a pair, one for each answer of a conversation."""
    content, where, at = record
    before = turns_of(content, given, "user", where) if given else []
    after = turns_of(content, answer, "assistant", where)
    if not given and not isinstance(content[answer], list):
        raise UserError(
            f"{where}: the field {answer!r} is one text, and nothing says what it answers: name the field of the "
            f"prompt with --given ({', '.join(map(str, content))}), or give a list of messages."
        )
    turns = before + after
    for number, turn in enumerate(turns):
        if number >= len(before) and turn.answers:
            yield Exchange(tuple(one for one in turns[:number] if one.text), turn.text, where, at)


def turns_of(content: Mapping[str, Any], name: str, role: str, where: str) -> list[Turn]:
    """The turns in a field: a text is one turn of `role`."""
    if name not in content:
        raise UserError(f"{where}: {unknown('field', name, map(str, content))} {ADVICE}")
    value = content[name]
    if value is None:
        return [Turn(role, "")]
    if isinstance(value, str):
        return [Turn(role, check_text(value, where))]
    if not isinstance(value, list):
        raise UserError(f"{where}: field {name!r} is neither text nor a list of messages but {value!r:.40}. {ADVICE}")
    return [message_turn(message, f"{where}, message {number}") for number, message in enumerate(value, 1)]


def message_turn(message: Any, where: str) -> Turn:
    """A message of a list as a turn."""
    if isinstance(message, Mapping):
        for role, content in KEYS:
            if isinstance(message.get(role), str) and isinstance(message.get(content), str):
                return Turn(message[role], check_text(message[content], where))
    raise UserError(f'{where} is not {{"role": "user", "content": "text"}} but {message!r:.60}.')
