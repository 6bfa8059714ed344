"""framed: the rows of an encoder, [CLS] text [SEP].

The special tokens are given wherever they stand, between two documents too: never hidden, counted or drawn. Encoders
are trained this way; their predictions at these positions are meaningless.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from unmask.errors import UserError, unknown
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Documents, Spans, Stretches
from unmask.text.layout import LAYOUTS, Layout, Written
from unmask.text.layouts.padded import PaddedLayout, written_between
from unmask.text.layouts.stream import StreamLayout
from unmask.text.layouts.wrap import WrapLayout
from unmask.text.row import Role, Row, is_predicted
from unmask.text.stretch import Document
from unmask.text.tokens.tokenizer import Tokenizer

UNUSED = re.compile(r"\[unused\d+\]")
WORDS: dict[str, Any] = {"rows": "apart", "padded": "apart", "stream": "joined", "wrap": "wrapped"}  # of --pack
TRAINED = ("wrap", "padded")


@LAYOUTS.register("framed", "[CLS] text [SEP], which are given: for published encoders")
@dataclass(frozen=True)
class FramedLayout(Layout):
    least = 4
    marked = closed = True

    documents_are: Literal["apart", "joined", "wrapped"] = "apart"  # one per row; a stream; only whole rows of it

    @classmethod
    def packed(cls, word: str, *, training: bool = False) -> "FramedLayout":
        """The layout for a word of the command line, --pack of `train` or --pack of `evaluate`."""
        if training and word not in TRAINED:
            raise UserError(
                f"the rows of an encoder stand between two special tokens, which the packing {word!r} does not have: "
                f"use --pack {' or '.join(TRAINED)}."
            )
        if word not in WORDS:
            raise unknown("packing", word, WORDS)
        return cls(documents_are=WORDS[word])

    @property
    def whole(self) -> bool:
        return self.apart

    @property
    def apart(self) -> bool:
        return self.documents_are == "apart"

    @property
    def inner(self) -> Layout:
        """The layout of the text between the marks."""
        if self.documents_are == "wrapped":
            return WrapLayout().on(self.marks)
        return StreamLayout(separated=self.apart).on(self.marks)

    @property
    def word(self) -> str:
        return self.inner.word

    @property
    def chosen(self) -> str:
        return PaddedLayout.chosen if self.apart else WrapLayout.chosen

    @property
    def without_stride(self) -> str:
        return self.inner.without_stride

    @property
    def fixed(self) -> tuple[int, ...]:
        return tuple(sorted({id for id in self.marks[:3] if id is not None}))

    def by_document(self) -> Layout:
        return replace(self, documents_are="apart")

    def evaluated(self, word: str) -> Layout:
        return self if word in ("auto", self.name) else self.packed(word).on(self.marks)

    def may_end(self, *, document: bool) -> bool:
        return False

    def opening(self, *, document: bool = False) -> list[int]:
        return [self.marks.both[0]]

    def closing(self) -> list[int]:
        return [self.marks.both[1]]

    def spans(self, corpus: Corpus, length: int) -> Spans:
        return Documents(corpus, length - 2) if self.apart else Stretches(corpus, length - 2)

    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        tokens, roles = written_between(self.marks, contents, length)
        return Written(tokens, self.given(tokens, roles))

    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        wrapped = self.documents_are == "wrapped"
        inner, ends = length if wrapped else length - 2, separate and not self.apart
        for row in self.inner.cut(documents, length=inner, stride=stride, separate=ends):
            yield replace(row, roles=self.given(row.tokens, row.roles)) if wrapped else self.around(row)

    def left_out(self, documents: Sequence[Document], rows: Sequence[Row], *, separate: bool) -> int:
        return sum(len(document.tokens) for document in documents) - sum(row.scored for row in rows)

    def part(self, tokens: Sequence[int] | np.ndarray) -> Row:
        return self.around(super().part(tokens))

    def around(self, row: Row) -> Row:
        """A row between its special tokens."""
        tokens = np.array([*self.opening(), *row.tokens, *self.closing()], np.int64)
        roles = np.array([Role.MARK, *row.roles, Role.MARK], np.int8)
        return replace(row, tokens=tokens, roles=self.given(tokens, roles))

    def blank(self, tokens: Sequence[int], mask: int, opening: int, closing: int) -> Row:
        row = super().blank(tokens, mask, opening, closing)
        special = np.isin(row.tokens, self.fixed)
        return replace(row, roles=np.where(special, np.int8(Role.MARK), row.roles))

    def known(self, row: Row) -> Row:
        return super().known(replace(row, roles=self.given(row.tokens, row.roles)))

    def given(self, tokens: np.ndarray, roles: np.ndarray) -> np.ndarray:
        return np.where(np.isin(tokens, self.fixed) & is_predicted(roles), np.int8(Role.MARK), roles)

    def undrawn(self, tokenizer: Tokenizer, *, ends: bool, constrained: bool = False) -> tuple[int, ...]:
        """Its special tokens; without a pattern also places that the vocabulary keeps free, [unused7]."""
        special = tuple(sorted(tokenizer.specials - {tokenizer.mask} - ({tokenizer.eos} if ends else set())))
        if constrained:
            return special
        return special + tuple(id for id, piece in enumerate(tokenizer.pieces) if UNUSED.fullmatch(piece))
