"""The zero-shot suite: the seven texts of the MDLM paper's Table 3, from the hub or from a local folder.

A local folder (`--data-root`) holds, for each set, one of the files below, plain or compressed (.gz, .xz, .zst). The
first one that exists is read; if it is not the text that the paper used, the result says so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import UserError, unknown
from unmask.text.corpus.dataset import PARQUET, DataSet, Unreadable
from unmask.text.corpus.decompress import chunks, lines
from unmask.text.corpus.detokenize import detokenizer
from unmask.text.corpus.formats import COMPRESSIONS
from unmask.text.corpus.named import NAMED, data_root, kept_lines
from unmask.text.corpus.records import records, rows_of
from unmask.untrusted import parse_json


def stripped_lines(path: Path) -> Iterator[str]:
    for line, _ in lines(path):
        yield line.strip()


def raw_lines(path: Path) -> Iterator[str]:
    for line in kept_lines(path):
        yield line.text


def jsonl_texts(path: Path) -> Iterator[str]:
    for record in records(path, "text"):
        yield record["text"]


def csv_columns(*columns: int | str) -> Callable[[Path], Iterator[str]]:
    """Texts of a table: some columns, joined by a space; names are looked up in the first line."""

    def texts(path: Path) -> Iterator[str]:
        rows = rows_of(path)
        named = any(isinstance(column, str) for column in columns)
        head = next((row.cells for row in rows), []) if named else []
        for name in columns:
            if isinstance(name, str) and name not in head:
                raise UserError(f"{path}: {unknown('column', name, head)}")
        places = [head.index(column) if isinstance(column, str) else column for column in columns]
        for row, where, _ in rows:
            if row and max(places) >= len(row):
                raise UserError(f"{where} has {len(row)} columns, not {max(places) + 1}.")
            if row:
                yield " ".join(row[place] for place in places)

    return texts


def pubmedqa(path: Path) -> Iterator[str]:
    """Abstracts of PubMedQA: the parts of the context, then the conclusion."""
    try:
        entries = parse_json("".join(chunk.text for chunk in chunks(path)), str(path), strict=False)
        for entry in entries.values():
            yield " ".join([*entry["CONTEXTS"], entry["LONG_ANSWER"]])
    except UserError:
        raise
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not PubMedQA's labelled set: {error!r}.") from None


@dataclass(frozen=True)
class Local:
    """A file under the data root that holds a set, or a similar text."""

    path: str
    read: Callable[[Path], Iterator[str]]
    differs: str = ""  # how it differs from the paper's text; empty: it does not


@dataclass(frozen=True)
class TextSet:
    """One of the suite's texts."""

    name: str
    title: str
    detokenizer: str
    hub: DataSet
    field: str  # of the hub's rows
    local: tuple[Local, ...]


SUITE = (
    TextSet(
        "ptb",
        "Penn Treebank, validation",
        "ptb",
        NAMED["ptb"].at("valid"),
        "sentence",
        (Local("ptb/ptb.valid.txt", stripped_lines),),
    ),
    TextSet(
        "wikitext",
        "WikiText raw, validation",
        "wikitext",
        NAMED["wikitext103"].at("valid"),
        "text",
        (
            Local("wikitext103/wiki.valid.raw", raw_lines),
            Local("wikitext2/wiki.valid.raw", raw_lines),
            Local("wikitext2/wiki.test.raw", raw_lines, "raw test articles, not validation"),
            Local("wikitext2/wiki.valid.tokens", raw_lines, "rare words are <unk>, not raw text"),
        ),
    ),
    TextSet(
        "lm1b",
        "One Billion Words, test",
        "lm1b",
        NAMED["lm1b"].at("test"),
        "text",
        (
            Local("lm1b/news.en.heldout-00000-of-00050", stripped_lines),
            Local(
                "lm1b_subset/1b_benchmark.test.tokens", stripped_lines, "a course's subset, not the official shard"
            ),
        ),
    ),
    TextSet(
        "lambada",
        "LAMBADA, OpenAI's test",
        "lambada",
        DataSet("EleutherAI/lambada_openai", "default", "test"),
        "text",
        (Local("lambada/lambada_test.jsonl", jsonl_texts),),
    ),
    TextSet(
        "ag_news",
        "AG News, test",
        "none",
        DataSet("fancyzhx/ag_news", split="test"),
        "text",
        (Local("ag_news/test.csv", csv_columns(1, 2)),),
    ),
    TextSet(
        "pubmed",
        "PubMed articles, validation",
        "scientific",
        DataSet("armanc/scientific_papers", "pubmed", "validation", PARQUET),
        "article",
        (Local("scientific/ori_pqal.json", pubmedqa, "1,000 abstracts of PubMedQA, not full articles"),),
    ),
    TextSet(
        "arxiv",
        "arXiv articles, validation",
        "scientific",
        DataSet("armanc/scientific_papers", "arxiv", "validation", PARQUET),
        "article",
        (Local("scientific/arxiv_abstracts.csv", csv_columns("abstract"), "2,000 abstracts, not full articles"),),
    ),
)


SETS = {one.name: one for one in SUITE}


def chosen_sets(names: tuple[str, ...]) -> list[TextSet]:
    """The sets of these names; without names, all."""
    for name in names:
        if name not in SETS:
            raise unknown("text of the suite", name, SETS)
    return [SETS[name] for name in names] if names else list(SUITE)


def find_file(one: TextSet, root: Path) -> tuple[Path, Local] | None:
    """The first of a set's files that exists."""
    for local in one.local:
        for path in [root / local.path, *(root / f"{local.path}.{ending}" for ending in COMPRESSIONS)]:
            if path.is_file():
                return path, local
    return None


def set_texts(one: TextSet, root: Path | None) -> tuple[Iterator[str], str, str]:
    """The detokenized texts of a set, their source, and how they differ from the paper's (empty: not at all).

    Without a root, the usual data root is searched, then the hub.
    """
    repair = detokenizer(one.detokenizer)
    if root is not None and not root.is_dir():
        raise UserError(f"there is no folder {root}.")
    place = data_root(root)
    there = find_file(one, place)
    if there is not None:
        path, local = there
        return map(repair, local.read(path)), path.relative_to(place).as_posix(), local.differs
    files = ", ".join(local.path for local in one.local)
    if root is not None:
        raise UserError(f"{root} holds no file for {one.name}. Searched for {files}.")
    try:
        data = one.hub.pinned()
    except Unreadable as error:
        raise UserError(f"{error} Put {files} into a folder and give it as --data-root.") from None
    return (repair(row[one.field]) for row in data.rows()), data.name, ""
