"""Layout: how a text becomes a row. One object writes the rows of training, evaluation, sampling and the server.

A layout is a component, in its own file in text/layouts, stored in a checkpoint beside the objective. It says which
marks stand around a text, which positions are learned and counted, and where a text ends:

    rows of a corpus     `spans` and `write`: of one length, for training; what does not fill a row is left out
    rows of documents    `cut`: for evaluation; every token is scored once, so ends are kept
    rows of requests     `opening` and `closing` are the marks before and after a text. From them follow `text` (to be
                         scored), `exchange` (a given text and its answer), `prompt`, `filled` (a template) and `pair`

A layout is `closed` if every text is a document from its first mark to its last (rows, padded, framed). In an open
one (stream, wrap, windows) rows begin and end anywhere in the text, and so do texts of requests: marks stand between
the documents of a corpus only.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from unmask.errors import UserError, how_many
from unmask.registry import Registry, derived
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Spans
from unmask.text.corpus.turns import Turn
from unmask.text.row import Role, Row, is_predicted
from unmask.text.stretch import Document, Stretch, join_documents
from unmask.text.tokens.alphabets import alphabet_of, undrawn_ids, unscored_ids
from unmask.text.tokens.tokenizer import Tokenizer, encode_given


class Marks(NamedTuple):
    """What a layout needs to know of a vocabulary and of an objective."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unscored: tuple[int, ...] = ()  # ids that are given wherever they stand
    leads: bool = False  # the objective predicts no first token, so that one is put before a text

    @classmethod
    def of(cls, tokenizer: Tokenizer | None, *, leads: bool = False) -> "Marks":
        if tokenizer is None:
            return cls(leads=leads)
        return cls(tokenizer.bos, tokenizer.eos, tokenizer.pad, unscored_ids(tokenizer), leads)

    @property
    def lead(self) -> list[int]:
        """The token before the first one that is predicted, if one is needed: bos, or eos if there is no bos."""
        first = self.eos if self.bos is None else self.bos
        return [first] if self.leads and first is not None else []

    @property
    def both(self) -> tuple[int, int]:
        """bos and eos, which a layout that is `marked` has been checked for."""
        assert self.bos is not None
        assert self.eos is not None
        return self.bos, self.eos


class Written(NamedTuple):
    """Rows of a training as arrays."""

    tokens: np.ndarray  # (b, l), int64
    roles: np.ndarray  # (b, l), int8


@dataclass(frozen=True)
class Layout(ABC):
    """A subclass is a frozen dataclass with a name in `LAYOUTS`."""

    name: ClassVar[str]
    registry: ClassVar[Registry[Any]]
    least: ClassVar[int] = 2  # tokens of the shortest row
    marked: ClassVar[bool] = False  # its rows need a bos and an eos
    continuous: ClassVar[bool] = False  # a row of a training goes on where the one before ended, without marks
    closed: ClassVar[bool] = False  # every text is a document from its first mark to its last
    answers: ClassVar[bool] = False  # a prompt is a text of its own, and what is drawn is the answer to it
    draws_room: ClassVar[bool] = False  # training draws the room after a text: `room`

    marks: Marks = derived(Marks())

    def on(self, marks: Marks) -> "Layout":
        """The layout with the marks of a vocabulary."""
        return replace(self, marks=marks)

    # Rows of a training

    @property
    def whole(self) -> bool:
        """Whether each row of a training is within one document."""
        return False

    @property
    def chosen(self) -> str:
        """What `unmask train` says where it chooses the layout by itself."""
        return "the rows of {length} tokens are packed as " + repr(self.name)

    @property
    def before(self) -> int:
        """The marks before the text in a row of a training."""
        return int(self.marked)

    @abstractmethod
    def spans(self, corpus: Corpus, length: int) -> Spans:
        """Which tokens are in which row of a training."""

    @abstractmethod
    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        """The rows of these contents."""

    def room(self, roles: np.ndarray, u: float) -> int:
        """The tokens of a row of training that are read, for a uniform number."""
        return len(roles)

    def check(self, length: int, *, least: int | None = None) -> None:
        """Refuse rows that are too short, and a vocabulary without the marks."""
        least = self.least if least is None else least
        if length < least:
            raise UserError(f"rows must be at least {least} tokens long, not {length}.")
        if self.marked and None in (self.marks.bos, self.marks.eos):
            raise UserError(f"packing {self.name!r} needs a tokenizer with bos and eos; use 'stream'.")

    # Rows of an evaluation

    @property
    def apart(self) -> bool:
        """Whether each row of an evaluation belongs to one document, so that numbers are reported by document."""
        return self.closed

    @property
    def word(self) -> str:
        """Its name on the command line of `evaluate`."""
        return self.name

    @property
    def without_stride(self) -> str:
        """Why its rows cannot overlap; empty: they can."""
        return ""

    def by_document(self) -> "Layout":
        """The layout of an evaluation in which each document has rows of its own."""
        return LAYOUTS.make("stream:separated=true").on(self.marks)

    def evaluated(self, word: str) -> "Layout":
        """The layout of an evaluation for --pack: `auto` is its own, `rows` has each document apart."""
        if word in ("auto", self.name):
            return self
        return self.by_document() if word == "rows" else layout_of(word, self.marks)

    @abstractmethod
    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        """The rows of some documents; with `separate`, an eos ends each of them."""

    def left_out(self, documents: Sequence[Document], rows: Sequence[Row], *, separate: bool) -> int:
        """The number of tokens, ends of documents included, that are in no row or given."""
        ends = len(self.stretch(documents, separate=separate).tokens)
        return ends - sum(row.scored for row in rows)

    def stretch(self, documents: Sequence[Document], *, separate: bool, first: int = 0) -> Stretch:
        end = self.marks.eos if separate else None
        return join_documents(documents, end=end, unscored=self.marks.unscored, first=first)

    # Rows of requests

    @property
    def documents(self) -> bool:
        """Whether a model has learned where documents begin and end, so that its texts do."""
        return False

    @property
    def fixed(self) -> tuple[int, ...]:
        """Special tokens that are given wherever they stand."""
        return ()

    def may_end(self, *, document: bool) -> bool:
        """Whether the end token may be drawn in a text; `document`: one that begins a document."""
        return self.documents or document

    def opening(self, *, document: bool = False) -> list[int]:
        """The marks before a text; `document`: it begins one."""
        if self.marks.leads or not document:
            return self.marks.lead
        if self.marks.eos is None:
            raise UserError("this model's tokenizer has no eos token, so no beginning of a document can be marked.")
        return [self.marks.eos]

    def closing(self) -> list[int]:
        """The marks after a text."""
        return []

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return () if self.marks.eos is None else (self.marks.eos,)

    def with_template(self, template: str, tokenizer: Tokenizer | None) -> "Layout":
        """The layout with a chat template; one that has no place for it is as it was."""
        return self

    def conversation(self, tokenizer: Tokenizer, turns: Sequence[Turn]) -> list[int]:
        """Messages as they stand before an answer; only a layout with `answers` has a place for them."""
        raise UserError(f"rows of packing {self.name!r} have no place for messages.")

    def question(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """The ids of a prompt."""
        return encode_given(tokenizer, text)

    def asked(self, given: Sequence[int] | np.ndarray) -> list[int]:
        """A given text as it stands before its answer."""
        return [int(id) for id in given]

    def text(self, document: Document, *, length: int) -> list[Row]:
        """A text alone, to be scored: as `cut` has it, and in an open layout without an end."""
        if not len(document.tokens):
            return []
        alone = self if self.whole else self.by_document()
        rows = alone.cut([document], length=length, stride=None, separate=self.closed)
        return [row for row in map(self.known, rows) if row.scored > 0]

    def exchange(self, given: Sequence[int] | np.ndarray, answer: Document, *, length: int, number: int = 0) -> Row:
        """An answer to a given text: only the answer is scored. In a closed layout the text ends with the answer."""
        before, after = [*self.opening(document=self.closed), *given], self.closing()
        roles = [Role.MARK] * (len(before) - len(given)) + [Role.GIVEN] * len(given)
        roles += [Role.FREE] * len(answer.tokens) + [Role.MARK] * len(after)
        tokens = np.array([*before, *answer.tokens, *after], np.int64)
        row = Row(tokens, np.array(roles, np.int8), float(answer.bytes), float(answer.words), number)
        return self.known(row)

    def leaves_out(self, given: Sequence[int] | np.ndarray, answer: Document, *, length: int) -> bool:
        """Whether a pair that is longer than a row is left out, by the rule of the layout."""
        return False

    @property
    def extra(self) -> int:
        """The tokens that a row has besides the text of an exchange; room for an end is not needed."""
        return len(self.opening(document=self.closed)) + len(self.closing())

    def prompt(self, before: Sequence[int], blanks: int, after: Sequence[int], *, mask: int, document: bool) -> Row:
        """A text with blanks between what is given before and after them; fewer than one: none."""
        opening, closing = self.opening(document=document), self.closing()
        tokens = [*opening, *before, *[mask] * blanks, *after, *closing]
        return self.blank(tokens, mask, len(opening), len(closing))

    @property
    def before_template(self) -> list[int]:
        """The marks before a template: those of a text, and in an open layout a lead alone, if one is needed."""
        return self.opening(document=True) if self.closed else self.marks.lead

    def filled(self, template: Sequence[int], *, mask: int, length: int) -> Row:
        """A template, whose blanks are masks."""
        opening, closing = self.before_template, self.closing()
        return self.blank([*opening, *template, *closing], mask, len(opening), len(closing))

    def blank(self, tokens: Sequence[int], mask: int, opening: int, closing: int) -> Row:
        """A row whose masks are free, between marks."""
        ids = np.array(tokens, np.int64)
        roles = np.where(ids == mask, Role.FREE, Role.GIVEN).astype(np.int8)
        roles[:opening] = Role.MARK
        roles[len(ids) - closing :] = Role.MARK
        return Row(ids, roles)

    def part(self, tokens: Sequence[int] | np.ndarray) -> Row:
        """Part of a text, which neither begins nor ends there, without a lead."""
        return self.known(Row.after(0, tokens))

    def pair(
        self,
        first: Sequence[int],
        second: Sequence[int] | None = None,
        *,
        separators: int = 1,
        around: tuple[Sequence[int], Sequence[int]],
    ) -> tuple[list[int], int]:
        """A text, or two with eos between them, to be classified: its tokens, and where the second begins."""
        before, after = around
        if second is None:
            tokens = [*before, *first, *after]
            return tokens, len(tokens)
        front = [*before, *first, *[self.marks.both[1]] * separators]
        return [*front, *second, *after], len(front)

    def known(self, row: Row) -> Row:
        """The row with the ids that are given wherever they stand."""
        given = np.isin(row.tokens, self.marks.unscored) & is_predicted(row.roles)
        return replace(row, roles=np.where(given, np.int8(Role.GIVEN), row.roles)) if given.any() else row

    def undrawn(self, tokenizer: Tokenizer, *, ends: bool, constrained: bool = False) -> tuple[int, ...]:
        """Ids that are never drawn; `ends`: a text may stop at its end token. A pattern says itself what is drawn."""
        return () if constrained else undrawn_ids(tokenizer, ends=ends)


LAYOUTS: Registry[Layout] = Registry("packing", room="unmask.text.layouts", group="unmask.layouts")


def layout_of(what: str | Layout, marks: Marks) -> Layout:
    """The layout itself, or the one of that name, for a vocabulary."""
    return (LAYOUTS.make(what) if isinstance(what, str) else what).on(marks)


def cut(
    documents: Sequence[Document], layout: Layout, *, length: int, stride: int | None = None, separate: bool = True
) -> tuple[list[Row], int]:
    """The rows of documents for evaluation, and the number of tokens that are in none of them or given."""
    layout.check(length)
    if stride is not None and layout.without_stride:
        raise UserError(layout.without_stride)
    most = length - layout.marks.leads
    if stride is not None and not 1 <= stride <= most:
        raise UserError(f"the stride must lie between 1 and {most}, so that no token is skipped; saw {stride}.")
    whole = layout.cut(documents, length=length, stride=stride, separate=separate)
    rows = [row for row in map(layout.known, whole) if row.scored > 0]
    if not rows:
        total = sum(len(document.tokens) for document in documents)
        raise UserError(
            f"the data has {how_many(total, 'token')} in {how_many(len(documents), 'document')}: not one row "
            f"of {length} to score ({layout.word}). Give more text, a shorter --length, or another packing "
            "(--pack stream)."
        )
    return rows, layout.left_out(documents, rows, separate=separate)


def framed_layout(word: str, **options: bool) -> Any:
    kind: Any = LAYOUTS["framed"]
    return kind.packed(word, **options)


def training_layout(word: str, marks: Marks, *, framed: bool) -> Layout:
    """The layout of a training for --pack; `framed`: of an encoder."""
    if framed and None not in (marks.bos, marks.eos):
        return framed_layout(word, training=True).on(marks)
    return layout_of(word, marks)


def recorded_layout(settings: Mapping[str, Any], tokenizer: Tokenizer | None, *, framed: bool) -> Layout | None:
    """The layout in the settings of a run, --pack; None: they have none."""
    text = settings.get("text")
    text = text if isinstance(text, Mapping) else {}
    word = text.get("pack")
    if not isinstance(word, str) or word.partition(":")[0] not in LAYOUTS:
        return None
    if framed and tokenizer is not None and None not in (tokenizer.bos, tokenizer.eos):
        return framed_layout(word)
    return LAYOUTS.make(word).with_template(str(text.get("template") or ""), tokenizer)


def usual_layout(settings: Mapping[str, Any], tokenizer: Tokenizer | None, *, framed: bool) -> Layout:
    """The layout of a checkpoint that records none: as such models are trained."""
    marks = tokenizer is not None and None not in (tokenizer.bos, tokenizer.eos)
    if framed and marks:
        return LAYOUTS.make("framed")
    if tokenizer is not None and alphabet_of(tokenizer) is not None:
        return LAYOUTS.make("windows")
    # A published model was trained as in the paper.
    return LAYOUTS.make("wrap") if "model_type" in settings and marks else LAYOUTS.make("stream:ends=false")
