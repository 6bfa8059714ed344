"""The text of a study: documents from files of any format, laid out as one file per split."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from unmask.errors import UserError, unknown
from unmask.files import clear_drafts, write_whole
from unmask.text.corpus.detokenize import detokenizer
from unmask.text.corpus.documents import SEPARATOR, FileLayout
from unmask.text.corpus.records import existing, rows_of
from unmask.text.corpus.sources import gather
from unmask.text.corpus.tokenized import whole_documents
from unmask.text.corpus.turns import exchanges

TOPICS = "python-topics"  # the help topics that every Python has: real prose without a download
HELD_OUT = 8  # topics for validation and for test


def locate_path(path: str, root: Path) -> str:
    """A path below the data folder, or as it is; hub names and the topics are no paths."""
    if path.startswith("hf:") or path.partition(":")[0] == TOPICS:
        return path
    return str(Path(path) if Path(path).is_absolute() else root / path)


def check_present(data: Mapping[str, Any], root: Path) -> None:
    """Refuse missing files before anything runs, and say where they belong."""
    wanted = [one["path"] for split in ("train", "valid", "test") for one in data.get(split, [])]
    wanted += [data["source"]] if "source" in data else []
    missing = []
    for path in wanted:
        place = locate_path(path, root)
        if not place.startswith("hf:") and not place.startswith(TOPICS) and not any_file(place):
            missing.append(place)
    if missing:
        raise UserError(
            f"the study's data is missing: {', '.join(missing)}. Put it there, or name the folder that holds it "
            "with --data-root."
        )


def any_file(place: str) -> bool:
    path = Path(place)
    return path.exists() or any(path.parent.glob(path.name)) if path.parent.exists() else False


def write_texts(data: Mapping[str, Any], root: Path, folder: Path) -> None:
    """Write train.txt, valid.txt and test.txt, whichever the study names; of pairs train.jsonl, ..."""
    clear_drafts(folder)  # of a process that was killed
    for split in ("train", "valid", "test"):
        if split in data and are_pairs(data):
            both = itertools.chain.from_iterable(pairs_of(one, root) for one in data[split])
            pairs = [{"given": given, "answer": answer} for given, answer in both]
            if not pairs:
                raise UserError(f"data.{split} holds no pairs.")
            write_whole(folder / f"{split}.jsonl", "".join(json.dumps(pair) + "\n" for pair in pairs))
        elif split in data:
            texts = [text for one in data[split] for text in documents_of(one, root)]
            if not texts:
                raise UserError(f"data.{split} holds no documents.")
            write_whole(folder / f"{split}.txt", "".join(f"{text}\n{SEPARATOR}\n" for text in texts))


def are_pairs(data: Mapping[str, Any]) -> bool:
    """Whether the files of a study hold given texts with answers."""
    return "given" in data.get("prepare", {})


def pairs_of(one: Mapping[str, Any], root: Path) -> Iterator[tuple[str, str]]:
    """The pairs of one source: two of its fields, or the two sides of each line."""
    texts: Iterable[tuple[str, str]]
    if "between" in one:
        halves = (text.partition(one["between"]) for text in documents_of({**one, "limit": None}, root))
        texts = ((before, after) for before, mark, after in halves if mark)
    else:
        path = existing(locate_path(one["path"], root))
        rows = exchanges(path, one.get("given", "given"), one.get("answer", "answer"))
        texts = (("\n".join(turn.text for turn in row.given), row.answer) for row in rows)
    stripped = ((given.strip(), answer.strip()) for given, answer in texts)
    return itertools.islice(stripped, one.get("limit"))


def documents_of(one: Mapping[str, Any], root: Path) -> Iterator[str]:
    """The documents of one source, those that are empty left out."""
    place, limit = locate_path(one["path"], root), one.get("limit")
    undo = detokenizer(one.get("detokenize", "none"))
    layout = FileLayout(**{name: one[name] for name in ("documents", "separator", "field") if name in one})
    number = 0
    if place.startswith(TOPICS):
        texts: Iterable[str] = topic_texts(place)
    elif "join" in one:
        texts = joined_rows(Path(place), one["join"], layout.field)
    else:
        texts = file_texts(place, layout)
    for text in texts:
        text = undo(text).strip().replace(SEPARATOR, " ")
        if text:
            if limit is not None and number >= limit:
                return
            number += 1
            yield text


def file_texts(place: str, layout: FileLayout) -> Iterator[str]:
    with gather(place) as sources:
        for source in sources:
            yield from whole_documents(source.pieces(layout))


def joined_rows(path: Path, key: str, field: str) -> Iterator[str]:
    """The documents of a table with one sentence per row: neighbours with the same value of a column, joined."""
    rows = rows_of(path)
    head = next((row.cells for row in rows), [])
    for name in (key, field):
        if name not in head:
            raise UserError(f"{path}: {unknown('column', name, head)}")
    at, of = head.index(key), head.index(field)
    whole = (row.cells for row in rows if len(row.cells) == len(head))
    for _, some in itertools.groupby(whole, lambda cells: cells[at]):
        yield " ".join(cells[of].strip() for cells in some)


def topic_texts(place: str) -> list[str]:
    """`python-topics:train`, `:valid` or `:test`: the topics by name, the last ones held out."""
    texts = [text.strip() for _, text in sorted(topics.items())]
    parts = {
        "train": texts[: -2 * HELD_OUT],
        "valid": texts[-2 * HELD_OUT : -HELD_OUT],
        "test": texts[-HELD_OUT:],
    }
    split = place.partition(":")[2]
    if split not in parts:
        raise UserError(f"write {TOPICS}:train, {TOPICS}:valid or {TOPICS}:test; saw {place!r}.")
    return parts[split]
