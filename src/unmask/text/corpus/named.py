"""Corpora by name: the training and test sets of the MDLM paper and of small experiments.

`unmask prepare lm1b`, `unmask train --data openwebtext`: a folder of the name below the data root is read if it holds
the files listed here, else the hub. Text comes out as the paper's models saw it: official splits, detokenized.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from unmask.errors import UserError
from unmask.text.corpus.dataset import PARQUET, DataSet
from unmask.text.corpus.decompress import lines
from unmask.text.corpus.documents import FileLayout, Piece, document_pieces
from unmask.text.corpus.formats import format_of

Files = Mapping[str, str]  # split to glob below the corpus's folder
PLAIN: Files = {"train": "train[.-]*", "valid": "val*[.-]*", "test": "test[.-]*"}


@dataclass(frozen=True)
class Named:
    """A corpus: where it is on the hub, what its files are called, and how they are read."""

    title: str
    hub: DataSet
    splits: Mapping[str, str]  # our split to the hub's
    files: tuple[Files, ...]  # what its publishers call its files; PLAIN names are taken too
    layout: FileLayout = field(default_factory=FileLayout)  # unit of text files, field of tables
    detokenizer: str = "none"
    line_ends: bool = False  # keep the line's white space and its end in each document
    characters: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # split to part of the only document

    def at(self, split: str) -> DataSet:
        return replace(self.hub, split=self.splits[split])

    def files_in(self, folder: Path) -> dict[str, list[Path]]:
        """Its files in a folder, by split: under the first names that include a training set, else any."""
        below = [{split: matches(folder, glob) for split, glob in files.items()} for files in (*self.files, PLAIN)]
        some = [{split: paths for split, paths in one.items() if paths} for one in below]
        return next((one for one in some if "train" in one), next(filter(None, some), {}))

    def pieces(self, path: Path, asked: FileLayout) -> Iterator[Piece]:
        """The documents of one of its files, before they are detokenized."""
        layout = complete_layout(asked, self.layout)
        if self.line_ends and layout.documents == "line" and format_of(path.name)[0] in (None, "text"):
            return kept_lines(path)
        return document_pieces(path, layout)

    def advice(self, name: str) -> str:
        """Which files to put where."""
        names = {split: glob.removeprefix("**/").removesuffix("*") for split, glob in self.files[0].items()}
        wanted = "; ".join(f"{split}: {name}" for split, name in names.items())
        return (
            f"Without a network, put its files into {home(name)} ({wanted}), or text of your own as train.txt, "
            "valid.txt and test.txt. The variable UNMASK_DATA names another folder than data/."
        )


NAMED = {
    "lm1b": Named(
        "One Billion Words",
        DataSet("billion-word-benchmark/lm1b", "plain_text", revision=PARQUET),
        {"train": "train", "test": "test"},
        ({"train": "**/news.en-*-of-00100*", "test": "**/news.en.heldout-*-of-00050*"},),
        FileLayout("line"),
        "lm1b",
    ),
    "openwebtext": Named(
        "OpenWebText; the last 100,000 documents are for validation, as in the paper",
        DataSet("Skylion007/openwebtext", "plain_text", revision="79d93d786212f7344586290adb811d4ae6a1762c"),
        {"train": "train[:7913769]", "valid": "train[7913769:]"},
        ({"train": "**/train-*-of-*.parquet"},),
    ),
    "c4": Named(
        "C4, English",
        DataSet("allenai/c4", "en", revision="1588ec454efa1a09f29cd18ddd04fe05fc8653a2"),
        {"train": "train", "valid": "validation"},
        ({"train": "**/c4-train.*", "valid": "**/c4-validation.*"},),
    ),
    "text8": Named(
        "text8: 90, 5 and 5 million characters",
        DataSet("afmck/text8"),
        {"train": "train", "valid": "train", "test": "train"},
        ({"train": "text8", "valid": "text8", "test": "text8"},),
        characters={"train": (0, 90_000_000), "valid": (90_000_000, 95_000_000), "test": (95_000_000, 100_000_000)},
    ),
    **{
        f"wikitext{size}": Named(
            f"WikiText-{size}, raw",
            DataSet(
                "Salesforce/wikitext",
                f"wikitext-{size}-raw-v1",
                revision="b08601e04326c79dfdd32d625aee71d232d685c3",
            ),
            {"train": "train", "valid": "validation", "test": "test"},
            tuple(
                {split: f"wiki.{split}.{kind}*" for split in ("train", "valid", "test")} for kind in ("raw", "tokens")
            ),
            FileLayout("line"),
            "wikitext",
            line_ends=True,
        )
        for size in (2, 103)
    },
    "tinystories": Named(
        "TinyStories",
        DataSet("roneneldan/TinyStories", revision="f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"),
        {"train": "train", "valid": "validation"},
        ({"train": "TinyStories-train.txt*", "valid": "TinyStories-valid.txt*"},),
    ),
    "ptb": Named(
        "Penn Treebank",
        DataSet("ptb-text-only/ptb_text_only", "penn_treebank", revision=PARQUET),
        {"train": "train", "valid": "validation", "test": "test"},
        ({split: f"ptb.{split}.txt*" for split in ("train", "valid", "test")},),
        FileLayout("line", field="sentence"),
        "ptb",
    ),
}
ALIASES = {"owt": "openwebtext", "1b": "lm1b", "penntreebank": "ptb"}


def corpus_name(text: str) -> str | None:
    """The name of a corpus, however it is written (OpenWebText, wikitext-103, owt); None: there is no such corpus."""
    plain = text.lower().replace("-", "").replace("_", "")
    name = ALIASES.get(plain, plain)
    return name if name in NAMED else None


def data_root(given: Path | None = None) -> Path:
    """The folder of the data: the one that is given, else the variable UNMASK_DATA, else data/."""
    return given or Path(os.environ.get("UNMASK_DATA") or "data")


def home(name: str) -> Path:
    """The folder of a named corpus below the data root."""
    return data_root() / name


def matches(folder: Path, glob: str) -> list[Path]:
    return [path for path in sorted(folder.glob(glob)) if path.is_file()]


def complete_layout(asked: FileLayout, own: FileLayout) -> FileLayout:
    usual = FileLayout()
    changed = {name: value for name, value in vars(asked).items() if value != getattr(usual, name)}
    return replace(own, **changed)


def kept_lines(path: Path) -> Iterator[Piece]:
    """Lines with their spaces and line ends; blank lines become empty."""
    for line, at in lines(path):
        yield Piece(line + "\n" if line.strip() else "", True, at)


def repair_documents(pieces: Iterator[Piece], repair: Callable[[str], str]) -> Iterator[Piece]:
    """Documents after a detokenizer."""
    held: list[str] = []
    for text, last, at, _ in pieces:
        held.append(text)
        if last:
            yield Piece(repair("".join(held)), True, at)
            held = []


def part_of(pieces: Iterator[Piece], start: int, stop: int) -> Iterator[Piece]:
    """The characters from `start` to `stop` of one document."""
    seen = 0
    for text, last, at, _ in pieces:
        cut = text[max(0, start - seen) : max(0, stop - seen)]
        seen += len(text)
        ended = last or seen >= stop
        if cut or ended:
            yield Piece(cut, ended, at)
        if ended:
            break
    if seen <= start:
        raise UserError(f"the text has {seen:,} characters; its part from {start:,} to {stop:,} does not exist.")
