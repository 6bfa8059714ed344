"""windows: each document cut every l tokens, without marks: for sequences. Training leaves out its incomplete end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Pieces, Spans
from unmask.text.layout import LAYOUTS, Layout, Marks, Written
from unmask.text.layouts.stream import cut_stretches, written_bare
from unmask.text.row import Row
from unmask.text.stretch import Document


@LAYOUTS.register("windows", "each document cut every l tokens, without marks: for sequences")
@dataclass(frozen=True)
class WindowsLayout(Layout):
    whole = True
    chosen = "rows of {length} tokens are cut within the intervals (--pack stream joins them)"

    def spans(self, corpus: Corpus, length: int) -> Spans:
        return Pieces(corpus, length)

    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        return written_bare(contents)

    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        bare = self.on(Marks(unscored=self.marks.unscored, leads=self.marks.leads))
        return cut_stretches(bare, documents, length=length, stride=stride, separate=False)

    def left_out(self, documents: Sequence[Document], rows: Sequence[Row], *, separate: bool) -> int:
        return super().left_out(documents, rows, separate=False)
