"""rows: one document per row after a bos, then eos up to the end of the row: lengths are learned.

All positions but the bos are hidden and predicted, the padding too, so that a sample ends by itself, at its first
eos. A row is a function of its document, so the nats of the row bound −log p of the document. They are divided by the
tokens of the document and its first eos only: easy padding makes no number look better. A document of l − 1 tokens or
more has no eos in its row: it has not ended. Training leaves out what is beyond; evaluation has further rows for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Documents, Spans
from unmask.text.layout import LAYOUTS, Layout, Marks, Written
from unmask.text.layouts.padded import NO_STRIDE, with_ends
from unmask.text.layouts.stream import cut_stretches
from unmask.text.row import Role, Row
from unmask.text.stretch import Document


@LAYOUTS.register("rows", "one document per row after a bos, then eos up to the end: lengths are learned")
@dataclass(frozen=True)
class RowsLayout(Layout):
    """A causal network reads no padding: its rows end with the first eos."""

    marked = whole = closed = True
    chosen = "the documents are short: one per row of {length} tokens, with its end (--pack stream joins them)"

    @property
    def documents(self) -> bool:
        return self.marks.eos is not None

    @property
    def without_stride(self) -> str:
        return "" if self.marks.leads else NO_STRIDE

    def opening(self, *, document: bool = False) -> list[int]:
        if self.marks.leads or not document or self.marks.bos is None:
            return self.marks.lead
        return [self.marks.bos]

    def spans(self, corpus: Corpus, length: int) -> Spans:
        return Documents(corpus, length - 1)

    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        return write_with_ends(self.marks, contents, length)

    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        if self.marks.leads:
            yield from cut_stretches(self, documents, length=length, stride=stride, separate=separate)
            return
        inner, bos = length - 1, self.opening(document=True)
        for number, document in enumerate(documents):
            stretch = self.stretch([document], separate=separate, first=number)
            for start in range(0, len(stretch.tokens), inner):
                row = stretch.between(start, min(start + inner, len(stretch.tokens)), bos, [], Role.MARK)
                yield self.ended(row, length) if separate else row

    def exchange(self, given: Sequence[int] | np.ndarray, answer: Document, *, length: int, number: int = 0) -> Row:
        row = super().exchange(given, answer, length=length, number=number)
        return self.ended(self.ended(row, min(length, len(row.tokens) + 1), Role.FREE), length)

    def filled(self, template: Sequence[int], *, mask: int, length: int) -> Row:
        row = super().filled(template, mask=mask, length=length)
        return row if self.marks.leads else self.ended(row, length, Role.MARK)

    def ended(self, row: Row, length: int, role: Role = Role.END) -> Row:
        """The row with eos up to a length; a causal network reads none after the first."""
        unread = self.marks.leads and role is Role.END
        return with_ends(row, 0 if unread else max(0, length - len(row.tokens)), self.marks.both[1], role)


def write_with_ends(marks: Marks, contents: Sequence[np.ndarray], length: int) -> Written:
    """A bos, a content and eos up to the end of each row; the first eos is counted, the others are not."""
    bos, eos = marks.both
    tokens = np.full((len(contents), length), eos, np.int64)
    tokens[:, 0] = bos
    for into, content in zip(tokens, contents, strict=True):
        into[1 : len(content) + 1] = content
    ends = np.array([len(content) + 2 for content in contents])[:, None]
    roles = np.where(np.arange(length) < ends, Role.FREE, Role.END).astype(np.int8)
    roles[:, 0] = Role.MARK  # the bos is given, also when a text is sampled
    return Written(tokens, roles)
