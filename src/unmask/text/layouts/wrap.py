"""wrap: the stream cut every l − 2 tokens, each row between bos and eos, as in the MDLM paper; no incomplete rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Spans, Stretches
from unmask.text.layout import LAYOUTS, Layout, Written
from unmask.text.row import Role, Row
from unmask.text.stretch import Document, join_documents

GROUP = 1000  # documents that the reference wraps together; the incomplete last row of a group is dropped


@LAYOUTS.register("wrap", "the same in pieces of l - 2 tokens, each row between bos and eos: as in the MDLM paper")
@dataclass(frozen=True)
class WrapLayout(Layout):
    """Its marks are learned and counted like the text."""

    least = 3
    marked = True
    without_stride = "'wrap' has no stride: its rows are cut side by side. Use 'stream' or 'rows'."
    chosen = "documents are joined and cut into rows of {length} tokens (--pack padded: one per row)"

    def spans(self, corpus: Corpus, length: int) -> Spans:
        return Stretches(corpus, length - 2)

    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        tokens = np.empty((len(contents), length), np.int64)
        tokens[:, 0], tokens[:, -1] = self.marks.both
        tokens[:, 1:-1] = contents
        return Written(tokens, np.full(tokens.shape, Role.FREE, np.int8))

    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        (bos, eos), inner = self.marks.both, length - 2
        for first in range(0, len(documents), GROUP):
            end = eos if separate else None
            some = documents[first : first + GROUP]
            stretch = join_documents(some, end=end, unscored=self.marks.unscored, first=first, empty=True)
            for start in range(0, len(stretch.tokens) - inner + 1, inner):
                row = stretch.between(start, start + inner, [bos], [eos], Role.FREE)
                if self.marks.leads:
                    row.roles[0] = Role.MARK
                yield row

    def left_out(self, documents: Sequence[Document], rows: Sequence[Row], *, separate: bool) -> int:
        ends = len(documents) if separate else 0
        scored = sum(row.scored - 2 + self.marks.leads for row in rows)
        return sum(len(document.tokens) for document in documents) + ends - scored
