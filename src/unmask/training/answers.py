"""Answers of a classifier to many texts: some thousand at a time, written as they come."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from unmask.files import open_draft
from unmask.model.answer import is_number
from unmask.model.predictor import Predictor
from unmask.model.reading import Encoded
from unmask.text.corpus.examples import Example
from unmask.text.corpus.manifest import loss_lines
from unmask.text.tokens.tokenizer import NoToken
from unmask.training.scores import scores_of

PART = 4096  # texts that are in memory at once
FORMULA = ("=", "+", "-", "@", "\t")  # a cell that begins with one is computed by spreadsheets


@dataclass
class Answers:
    """What is known of texts that were answered."""

    predictor: Predictor
    texts: int = 0
    cut: int = 0
    longest: int = 0  # tokens
    replaced: Counter[str] = field(default_factory=Counter)
    truth: list[float] = field(default_factory=list)  # of the texts that have a label
    decisions: list[float] = field(default_factory=list)  # numbers of labels, or numbers

    def add(self, some: Sequence[Example], *, batch: int) -> np.ndarray:
        """Answer some texts: probabilities of the labels, or a number, for each."""
        rows, lengths = encode_examples(self.predictor, some)
        values = self.predictor.answers(rows, batch=batch).numpy()
        self.texts += len(some)
        self.cut += sum(length > row.size for row, length in zip(rows, lengths, strict=True))
        self.longest = max(self.longest, *lengths)
        self.replaced.update(self.predictor.tokenizer.replaced(part for one in some for part in one.parts))
        known = [one for one in some if one.label is not None]
        self.truth += [self.predictor.answer.target(str(one.label), one.where) for one in known]
        self.decisions += self.predictor.answer.decisions(values).tolist()
        return values

    def warnings(self) -> Iterator[str]:
        yield from (f"warning: {line}." for line in loss_lines({"replaced": self.replaced}))
        if self.cut:
            yield cut_line(self.predictor, self.cut, self.texts, self.longest)

    def scores(self, names: Sequence[str]) -> dict[str, float]:
        """The scores, if every text has a label; else none."""
        if len(self.truth) < self.texts:
            return {}
        return scores_of(names, np.array(self.truth), np.array(self.decisions))

    def lines(self) -> list[str]:
        """Each answer in a word: a label, or a number with three digits."""
        labels = self.predictor.answer.labels
        return [labels[int(one)] if labels else f"{one:.3f}" for one in self.decisions]


def answer(predictor: Predictor, some: Iterable[Example], out: Path | None, *, named: bool, batch: int) -> Answers:
    """Answer texts, and write the answers to a .csv file: a line for each, in order; `named`: with FASTA names."""
    answers, source = Answers(predictor), iter(some)
    with nullcontext() if out is None else open_draft(out) as file:
        write_row(file, head_of(predictor, named=named))
        while part := list(islice(source, PART)):
            first = answers.texts
            for i, (one, values) in enumerate(zip(part, answers.add(part, batch=batch), strict=True), first):
                write_row(file, answer_cells(predictor, i, one, values, named=named))
    return answers


def write_row(file: IO[bytes] | None, cells: Sequence[Any]) -> None:
    if file is None:
        return
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([without_formula(str(cell)) for cell in cells])
    file.write(line.getvalue().encode())


def without_formula(cell: str) -> str:
    """The cell with a ' before it if a spreadsheet would run it as a formula; numbers stay as they are."""
    return cell if not cell.startswith(FORMULA) or is_number(cell) else f"'{cell}"


def head_of(predictor: Predictor, *, named: bool) -> list[str]:
    chances = [f"p({label})" for label in predictor.answer.labels]
    return ["index", *(["name"] if named else []), "label", "prediction", *chances]


def answer_cells(predictor: Predictor, index: int, one: Example, values: np.ndarray, *, named: bool) -> list[Any]:
    label, chances, number = predictor.answer.prediction(values.tolist())
    decision = label if number is None else f"{number:.6g}"
    shown = [f"{value:.6g}" for value in chances.values()]
    return [index, *([one.name] if named else []), one.label or "", decision, *shown]


def encode_examples(predictor: Predictor, some: Sequence[Example]) -> tuple[list[Encoded], list[int]]:
    """Examples as ids, and their lengths before a cut; the error for a letter without a token says where it is."""
    try:
        return predictor.encode_whole([one.texts for one in some])
    except NoToken as error:
        raise error.locate((one.where, text) for one in some for text in one.parts) from None


def cut_line(predictor: Predictor, cut: int, texts: int, longest: int, what: str = "") -> str:
    """How many texts were cut, and what keeps them whole."""
    needed, most = longest + predictor.marks_around, predictor.longest
    remedy = f"--length {needed} keeps them whole" if needed <= most else f"this network reads at most {most:,}"
    return (
        f"{cut:,} of {texts:,} {what}texts have more than {predictor.reading.length} tokens and were cut ({remedy})."
    )
