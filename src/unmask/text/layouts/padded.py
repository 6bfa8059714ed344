"""padded: one document per row between bos and eos, its length given to the network: as in the MDLM paper for LM1B.

The network never sees the padding. It cannot choose a length, and its nats are given the length. Training leaves out
the tokens of a document beyond l; evaluation puts them into further rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Documents, Spans
from unmask.text.layout import LAYOUTS, Layout, Marks, Written
from unmask.text.layouts.stream import cut_stretches
from unmask.text.row import Role, Row
from unmask.text.stretch import Document

NO_STRIDE = "this model was trained on rows of one document each, which have no stride."


@LAYOUTS.register(
    "padded", "one document per row between bos and eos, its length given to the network: the paper's LM1B"
)
@dataclass(frozen=True)
class PaddedLayout(Layout):
    """Its marks are learned and counted like the text."""

    least = 3
    marked = whole = closed = True
    chosen = "the documents are short: one per row of {length} tokens (--pack wrap joins them)"

    @property
    def without_stride(self) -> str:
        return "" if self.marks.leads else NO_STRIDE

    def may_end(self, *, document: bool) -> bool:
        return document

    def opening(self, *, document: bool = False) -> list[int]:
        return [self.marks.both[0]]

    def closing(self) -> list[int]:
        return [] if self.marks.leads else [self.marks.both[1]]

    def exchange(self, given: Sequence[int] | np.ndarray, answer: Document, *, length: int, number: int = 0) -> Row:
        row = super().exchange(given, answer, length=length, number=number)
        return with_ends(row, int(self.marks.leads), self.marks.both[1], Role.FREE)

    def spans(self, corpus: Corpus, length: int) -> Spans:
        return Documents(corpus, length - 2)

    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        return written_between(self.marks, contents, length)

    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        if self.marks.leads:
            yield from cut_stretches(self, documents, length=length, stride=stride, separate=separate)
            return
        inner = length - 2
        for number, document in enumerate(documents):
            stretch = self.stretch([document], separate=False, first=number)
            for start in range(0, len(stretch.tokens), inner):
                stop = min(start + inner, len(stretch.tokens))
                yield stretch.between(start, stop, self.opening(), self.closing(), Role.FREE)

    def left_out(self, documents: Sequence[Document], rows: Sequence[Row], *, separate: bool) -> int:
        if self.marks.leads:
            return super().left_out(documents, rows, separate=separate)
        return super().left_out(documents, rows, separate=False) + 2 * len(rows)


def with_ends(row: Row, count: int, eos: int, role: Role) -> Row:
    """A row with some eos after it."""
    tokens = np.append(row.tokens, np.full(count, eos, np.int64))
    return replace(row, tokens=tokens, roles=np.append(row.roles, np.full(count, role, np.int8)))


def written_between(marks: Marks, contents: Sequence[np.ndarray], length: int) -> Written:
    """Each content between bos and eos, all learned, then padding that is not read."""
    bos, eos = marks.both
    filler = eos if marks.pad is None else marks.pad
    tokens = np.full((len(contents), length), filler, np.int64)
    tokens[:, 0] = bos
    for into, content in zip(tokens, contents, strict=True):
        into[1 : len(content) + 1] = content
        into[len(content) + 1] = eos
    ends = np.array([len(content) + 2 for content in contents])[:, None]
    return Written(tokens, np.where(np.arange(length) < ends, Role.FREE, Role.PAD).astype(np.int8))
