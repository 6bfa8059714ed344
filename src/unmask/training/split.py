"""Splits of labelled data: what a trial learns from, chooses its best weights by, and is tested on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.model.answer import Answer, is_number, number_of
from unmask.text.corpus.benchmarks import Benchmark, Splits, benchmark_of, unknown_data
from unmask.text.corpus.examples import Columns, Example, examples
from unmask.text.corpus.formats import FORMATS, format_of
from unmask.text.corpus.intervals import SPLITS

MANY = 50  # labels that are all numbers: then they are probably no classes


@dataclass(frozen=True)
class Split:
    """Which texts are for training, validation and test."""

    valid: str = ""  # file of validation texts; none: a part of the training texts is held out
    test: str = ""  # file of test texts; their labels may be missing
    held_out: float = 0.1  # share of the training texts that is held out, a random one for each seed
    folds: int = 0  # cross-validation: seed k holds out the k-th of so many parts; 0: none
    rows: int = 0  # use so many random training texts; 0: all
    data_root: str = ""  # folder with benchmarks by name; none: the variable UNMASK_DATA, or data/

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise UserError(f"--held-out must lie between 0 and 1; saw {self.held_out}.")
        if self.folds < 0 or self.folds == 1:
            raise UserError(f"--folds must be 2 or more, or 0 for none; saw {self.folds}.")
        if self.rows < 0:
            raise UserError(f"--rows must be 0 (all) or more; saw {self.rows}.")

    @property
    def root(self) -> Path | None:
        """The folder with benchmarks, if one was given."""
        return Path(self.data_root) if self.data_root else None


@dataclass(frozen=True)
class Labelled:
    """Labelled data by split, and what is predicted."""

    name: str
    splits: Splits
    answer: Answer
    benchmark: Benchmark | None = None

    @property
    def pairs(self) -> bool:
        return self.splits["train"][0].pair is not None

    @property
    def columns(self) -> Columns | None:
        """The columns of a benchmark; None: those that were asked for."""
        return None if self.benchmark is None else self.benchmark.columns

    @property
    def sha256(self) -> str:
        """Of all texts and labels, in order."""
        held = sha256()
        for split, some in sorted(self.splits.items()):
            for one in some:
                held.update(repr((split, one.texts, one.label)).encode())
        return held.hexdigest()


@dataclass(frozen=True)
class Parts:
    """The texts of a trial."""

    train: Sequence[Example]
    valid: Sequence[Example]
    test: Sequence[Example]


def gather_labelled(place: str, columns: Columns, split: Split, *, number: bool) -> Labelled:
    """The data at a place: a file, a folder with train, valid (or dev) and test files, or a benchmark by name."""
    benchmark = None if Path(place).exists() else benchmark_of(place)
    splits = dict(splits_at(place, columns, split, benchmark))
    for name, file in (("valid", split.valid), ("test", split.test)):
        if file:
            splits[name] = examples(file, columns, labels=name == "valid")
    name, advice = place, ""
    if benchmark is not None:
        name, advice = benchmark.name, f": {benchmark.missing('train', split.root)}"
    if not splits.get("train"):
        raise UserError(f"{name} has no training texts at hand, so nothing can be learned{advice}.")
    number = number or (benchmark is not None and benchmark.number)
    answer = numbers(splits["train"]) if number else classes(splits["train"], place)
    for one in (one for some in splits.values() for one in some):
        if one.label is not None:
            answer.target(one.label, one.where)
    return Labelled(name, splits, answer, benchmark)


def splits_at(place: str, columns: Columns, split: Split, benchmark: Benchmark | None) -> Splits:
    if benchmark is not None:
        return benchmark.splits(split.root)
    if not Path(place).exists():
        raise unknown_data(place)
    return in_folder(Path(place), columns) if Path(place).is_dir() else {"train": examples(place, columns)}


def repeat_lines(data: Labelled) -> Iterator[str]:
    """What there is to say of texts that occur more than once, in whatever split."""
    labels: dict[Any, list[str | None]] = {}
    for one in (one for some in data.splits.values() for one in some):
        labels.setdefault(one.texts, []).append(one.label)
    often = [some for some in labels.values() if len(some) > 1]
    if often:
        yield (
            f"{len(often):,} texts occur more than once, {sum(map(len, often)):,} times in all: the same text may be "
            "in the training and the held-out part, which makes scores too good"
        )
    unlike = sum(len({label for label in some if label is not None}) > 1 for some in often)
    if unlike:
        yield f"{unlike:,} of them occur with different labels: no answer to them can be always right"


def in_folder(folder: Path, columns: Columns) -> Splits:
    """The files of a folder whose names say which split they are."""
    splits: dict[str, list[Example]] = {}
    for path in sorted(folder.iterdir()):
        split = SPLITS.get(path.name.lower().split(".")[0])
        if split is not None and path.is_file() and format_of(path.name)[0] in ("csv", "jsonl", "fasta"):
            splits.setdefault(split, []).extend(examples(path, columns, labels=split != "test"))
    if "train" not in splits:
        kinds = ", ".join(f"train.{kind}" for kind in FORMATS if FORMATS[kind] in ("csv", "jsonl", "fasta"))
        raise UserError(f"the folder {folder} has no training texts: {kinds}, plain or compressed.")
    return splits


def classes(some: Sequence[Example], place: str) -> Answer:
    """The labels of the training texts, sorted: as numbers if all are whole numbers."""
    labels = sorted({one.label for one in some if one.label is not None})
    if all(label.lstrip("-").isdecimal() for label in labels):
        labels.sort(key=int)
    if len(labels) < 2:
        raise UserError(f"all {len(some)} training texts of {place} have the label {labels[0]!r}: nothing to learn.")
    if len(labels) > MANY and all(is_number(label) for label in labels):
        raise UserError(
            f"{place} has {len(labels)} different labels, all of them numbers: give --number to predict the number."
        )
    return Answer(tuple(labels))


def numbers(some: Sequence[Example]) -> Answer:
    """The mean and the spread of the training texts' numbers."""
    values = np.array([number_of(str(one.label), one.where) for one in some])
    if np.ptp(values) == 0:
        raise UserError(f"all {len(values)} training texts have the number {values[0]:g}: nothing to learn.")
    return Answer((), float(values.mean()), float(values.std()))


def parts_of(data: Labelled, split: Split, *, number: int, seed: int) -> Parts:
    """The texts of a trial, the `number`-th from 0, with this seed."""
    train, valid = list(data.splits["train"]), list(data.splits.get("valid", ()))
    if split.rows and split.rows < len(train):
        some = np.random.default_rng(0).permutation(len(train))[: split.rows]  # the same for every seed
        train = [train[i] for i in sorted(some.tolist())]
    if split.folds and valid:
        raise UserError("the data has validation texts of its own, so there are no folds: leave out --folds.")
    if not valid:
        held = held_out(len(train), split, number=number, seed=seed)
        valid = [train[i] for i in held]
        train = [one for i, one in enumerate(train) if i not in held]
    if not train or not valid:
        raise UserError(f"{data.name} has too few texts to train on some and hold out others.")
    return Parts(train, valid, data.splits.get("test", ()))


def held_out(texts: int, split: Split, *, number: int, seed: int) -> set[int]:
    """The texts that a trial holds out."""
    if not split.folds:
        order = np.random.default_rng((seed, texts)).permutation(texts)
        return set(order[: max(1, round(split.held_out * texts))].tolist())
    if number >= split.folds:
        raise UserError(f"trial {number + 1} has no fold of its own: --seeds may be {split.folds} at most.")
    return set(np.random.default_rng(0).permutation(texts)[number :: split.folds].tolist())
