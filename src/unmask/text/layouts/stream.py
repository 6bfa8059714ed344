"""stream: the documents one after another, an eos after each, cut every l tokens: no token is wasted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Spans, Stretches
from unmask.text.layout import LAYOUTS, Layout, Written
from unmask.text.row import Role, Row
from unmask.text.stretch import Document


@LAYOUTS.register(
    "stream", "documents one after another with an eos between them, cut every l tokens: no token is wasted"
)
@dataclass(frozen=True)
class StreamLayout(Layout):
    """Evaluation keeps the incomplete last row. `separated`: each document has rows of its own there."""

    continuous = True
    chosen = "documents are joined and cut into rows of {length} tokens (--pack rows: one per row)"

    ends: bool = True  # an eos ends each document; False: not known
    separated: bool = False  # in evaluation, no row has tokens of two documents

    @property
    def apart(self) -> bool:
        return self.separated

    @property
    def word(self) -> str:
        return "rows" if self.separated else self.name

    @property
    def documents(self) -> bool:
        return self.ends and self.marks.eos is not None

    def spans(self, corpus: Corpus, length: int) -> Spans:
        return Stretches(corpus, length)

    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        return written_bare(contents)

    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        return cut_stretches(
            self, documents, length=length, stride=stride, separate=separate, joined=not self.separated
        )


def written_bare(contents: Sequence[np.ndarray]) -> Written:
    """Rows without marks: all is learned."""
    tokens = np.stack(contents).astype(np.int64)
    return Written(tokens, np.full(tokens.shape, Role.FREE, np.int8))


def cut_stretches(
    layout: Layout,
    documents: Sequence[Document],
    *,
    length: int,
    stride: int | None,
    separate: bool,
    joined: bool = False,
) -> Iterator[Row]:
    """Rows of the stream of all documents, or of each document, after a lead if the objective needs one."""
    leads = layout.marks.leads
    parts = [(0, documents)] if joined else [(i, [one]) for i, one in enumerate(documents) if len(one.tokens)]
    for number, some in parts:
        stretch = layout.stretch(some, separate=separate, first=number)
        for lead in layout.marks.lead:
            stretch = stretch.after(lead)
        yield from stretch.rows(length, stride=stride or length - leads, context=int(leads))
