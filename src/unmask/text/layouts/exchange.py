"""exchange: a given text and its answer in one row; only the answer and its end are learned.

    bos  question  eos  answer  eos  eos ... eos
    MARK GIVEN     MARK FREE    FREE END ... END

Each turn of a conversation ends with an eos, and the last turn is the answer. Lengths are learned without floods of
eos: the first eos after the answer is counted, the others are learned but not counted, and training draws how many of
them there are. The room for an answer of n tokens (with its end) is n · (most / n)^u with u uniform in [0, 1]: so a
small room is as usual as a large one, and a request may ask for any room. Evaluation and samples have the rest of the
row by default.

What is longer than a row follows the rule `long`: `cut` takes tokens from the beginning of what is given, `drop`
leaves the pair out, `refuse` is an error. An answer is never cut: one that does not fit is an error, but for `drop`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from unmask.errors import UserError
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Spans
from unmask.text.corpus.turns import Turn
from unmask.text.layout import LAYOUTS, Layout, Written
from unmask.text.layouts.padded import NO_STRIDE, with_ends
from unmask.text.layouts.rows import write_with_ends
from unmask.text.row import Role, Row, is_predicted
from unmask.text.stretch import Document
from unmask.text.tokens.tokenizer import Tokenizer, encode_given

Long = Literal["cut", "drop", "refuse"]


@LAYOUTS.register("exchange", "pairs: a given text, then its answer, which alone is learned, with its end")
@dataclass(frozen=True)
class ExchangeLayout(Layout):
    """A causal network reads no eos after the first."""

    extra: ClassVar[int] = 3  # bos, and the ends of what is given and of the answer

    least = 5
    marked = whole = closed = answers = draws_room = True
    without_stride = NO_STRIDE
    chosen = "pairs: one per row of {length} tokens; the answer and its end are learned"

    long: Long = "cut"  # what does not fit into a row: cut the start of what is given, drop the pair, or refuse it

    @property
    def documents(self) -> bool:
        return self.marks.eos is not None

    def by_document(self) -> Layout:
        return self

    def opening(self, *, document: bool = False) -> list[int]:
        if self.marks.leads or not document or self.marks.bos is None:
            return self.marks.lead
        return [self.marks.bos]

    def conversation(self, tokenizer: Tokenizer, turns: Sequence[Turn]) -> list[int]:
        return [id for turn in turns for id in self.asked(encode_given(tokenizer, turn.text))]

    def asked(self, given: Sequence[int] | np.ndarray) -> list[int]:
        """A given text with the eos that ends it."""
        text, eos = super().asked(given), self.marks.both[1]
        return text if not text or text[-1] == eos else [*text, eos]

    def spans(self, corpus: Corpus, length: int) -> Spans:
        return AnswerSpans(corpus, length - 2, starts_in(corpus, length - 2, self.long))

    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        return write_with_ends(self.marks, contents, length)

    def room(self, roles: np.ndarray, u: float) -> int:
        return exchange_room(roles, u)

    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        return rows_of_answers(self, documents, length=length, most=length - 2, rule=self.long)

    def exchange(self, given: Sequence[int] | np.ndarray, answer: Document, *, length: int, number: int = 0) -> Row:
        before, inner = np.array(self.asked(given), np.int64), np.asarray(answer.tokens, np.int64)
        rule: Long = "refuse" if self.long == "refuse" else "cut"
        start = start_of(len(before) + len(inner), len(inner), length - 2, rule, f"answer {number + 1}")
        before = before[start or 0 :]
        opening = self.opening(document=True)
        tokens = np.concatenate([opening, before, inner, [self.marks.both[1]]]).astype(np.int64)
        roles = np.full(len(tokens), Role.FREE, np.int8)
        roles[: len(opening)] = Role.MARK
        roles[len(opening) : len(opening) + len(before)] = self.given_roles(before)
        row = self.known(Row(tokens, roles, float(answer.bytes), float(answer.words), number))
        spare = 0 if self.marks.leads else length - len(tokens)
        return with_ends(row, spare, self.marks.both[1], Role.END)

    def leaves_out(self, given: Sequence[int] | np.ndarray, answer: Document, *, length: int) -> bool:
        return self.long == "drop" and len(self.asked(given)) + len(answer.tokens) > length - 2

    def filled(self, template: Sequence[int], *, mask: int, length: int) -> Row:
        return with_ends(super().filled(template, mask=mask, length=length), 1, self.marks.both[1], Role.MARK)

    def blank(self, tokens: Sequence[int], mask: int, opening: int, closing: int) -> Row:
        row = super().blank(tokens, mask, opening, closing)
        ends = (row.tokens == self.marks.eos) & ~is_predicted(row.roles)
        row.roles[ends] = Role.MARK
        return row

    def given_roles(self, tokens: np.ndarray) -> np.ndarray:
        return np.where(tokens == self.marks.eos, Role.MARK, Role.GIVEN).astype(np.int8)


def exchange_room(roles: np.ndarray, u: float) -> int:
    """The tokens of a row of training that are read, for a uniform number: what is given, and the drawn room."""
    given = int((roles < Role.FREE).sum())
    answer, most = int((roles == Role.FREE).sum()), len(roles) - given
    return given + min(most, int(answer * ((most + 1) / answer) ** u)) if answer else len(roles)


def rows_of_answers(
    layout: Layout, documents: Sequence[Document], *, length: int, most: int, rule: Long
) -> Iterator[Row]:
    """The rows of documents that end with an answer, of which rows of this length have room for `most` tokens."""
    for number, document in enumerate(documents):
        answer = len(document.tokens) - document.given
        if not len(document.tokens) or start_of(len(document.tokens), answer, most, rule) is None:
            continue
        given, tokens = np.split(document.tokens, [document.given])
        yield layout.exchange(given, document._replace(tokens=tokens), length=length, number=number)


def start_of(size: int, answer: int, most: int, rule: Long, name: str = "an answer") -> int | None:
    """The first token that stays, of `size` that end with an answer; None: the pair is dropped."""
    if size <= most:
        return 0
    if rule == "drop":
        return None
    if answer + 1 > most:
        raise UserError(
            f"{name} has {answer:,} tokens, and rows of {most + 2:,} have room for {most - 1:,}: give --length "
            f"{answer + 3} or more, shorten it, or leave out what does not fit with --pack exchange:long=drop."
        )
    if rule == "refuse":
        raise UserError(
            f"{name} and what is given have {size:,} tokens, and rows of {most + 2:,} have room for {most:,}: give "
            f"--length {size + 2} or more, or cut what is given with --pack exchange:long=cut."
        )
    return size - most


def starts_in(corpus: Corpus, most: int, rule: Long) -> np.ndarray:
    """The number of tokens that are cut off each document, so that `most` are left; −1: it is dropped."""
    lengths = corpus.lengths(most=max(1, corpus.documents))
    starts = np.zeros(len(lengths), np.int64)
    for number in np.flatnonzero(lengths > most).tolist():
        answer = int(is_predicted(corpus.roles(*corpus.span(number))).sum())
        name = f"the answer of pair {number + 1:,} of the data"
        start = start_of(int(lengths[number]), answer, most, rule, name)
        starts[number] = -1 if start is None else start
    return starts


@dataclass(frozen=True, eq=False)
class AnswerSpans:
    """The last `most` tokens of each document, all of its answer among them."""

    corpus: Corpus
    most: int
    starts: np.ndarray

    @cached_property
    def numbers(self) -> np.ndarray:
        """The documents that have a row."""
        return np.flatnonzero(self.starts >= 0)

    @property
    def left_out(self) -> str:
        dropped, cut = int((self.starts < 0).sum()), int((self.starts > 0).sum())
        if dropped:
            return (
                f"{dropped:,} of {len(self.starts):,} pairs are longer than a row of {self.most + 2} and are left "
                "out: a greater --length takes them in."
            )
        if cut:
            return (
                f"{cut:,} of {len(self.starts):,} pairs are longer than a row of {self.most + 2}: the beginning of "
                "what is given is cut. A greater --length takes it in."
            )
        return ""

    def __len__(self) -> int:
        return len(self.numbers)

    def span(self, number: int) -> tuple[int, int]:
        document = int(self.numbers[number])
        start, stop = self.corpus.span(document)
        return start + int(self.starts[document]), stop
