"""A layout of one file: the stream cut every l − 1 tokens, and a given eos before each row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Spans, Stretches
from unmask.text.layout import LAYOUTS, Layout, Written
from unmask.text.row import Role, Row
from unmask.text.stretch import Document


@LAYOUTS.register("toy-layout")
@dataclass(frozen=True)
class ToyLayout(Layout):
    marked = True

    repeats: int = 1  # how many eos stand before a row

    @property
    def before(self) -> int:
        return self.repeats

    def spans(self, corpus: Corpus, length: int) -> Spans:
        return Stretches(corpus, length - self.repeats)

    def write(self, contents: Sequence[np.ndarray], length: int) -> Written:
        tokens = np.full((len(contents), length), self.marks.eos, np.int64)
        tokens[:, self.repeats :] = contents
        roles = np.full(tokens.shape, Role.FREE, np.int8)
        roles[:, : self.repeats] = Role.MARK
        return Written(tokens, roles)

    def cut(self, documents: Sequence[Document], *, length: int, stride: int | None, separate: bool) -> Iterator[Row]:
        stretch, inner = self.stretch(documents, separate=separate), length - self.repeats
        for start in range(0, len(stretch.tokens), inner):
            stop = min(start + inner, len(stretch.tokens))
            yield stretch.between(start, stop, self.opening(), [], Role.MARK)

    def by_document(self) -> Layout:
        return self

    def opening(self, *, document: bool = False) -> list[int]:
        return [self.marks.both[1]] * self.repeats
