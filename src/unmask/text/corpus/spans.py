"""Spans: which tokens of a corpus are in which row of a training, by the number of the row."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from unmask.text.corpus.corpus import Corpus


@runtime_checkable
class Spans(Protocol):
    """Rows by their number."""

    @property
    def too_short(self) -> int:
        """Documents of which nothing is in any row."""

    def __len__(self) -> int: ...

    def content(self, number: int) -> np.ndarray:
        """The tokens of a row, without the marks that a layout adds."""


@dataclass(frozen=True)
class Stretches:
    """The stream of all documents, cut every `step` tokens; its incomplete end is left out."""

    corpus: Corpus
    step: int
    too_short = 0

    def __len__(self) -> int:
        return self.corpus.tokens // self.step

    def content(self, number: int) -> np.ndarray:
        return self.corpus.read(number * self.step, (number + 1) * self.step)


@dataclass(frozen=True)
class Documents:
    """The first `most` tokens of each document."""

    corpus: Corpus
    most: int
    too_short = 0

    def __len__(self) -> int:
        return self.corpus.documents

    def content(self, number: int) -> np.ndarray:
        return self.corpus.document(number)[: self.most]


@dataclass(frozen=True)
class Pieces:
    """Each document cut every `step` tokens; its incomplete end is left out."""

    corpus: Corpus
    step: int

    @cached_property
    def upto(self) -> np.ndarray:
        """How many pieces the documents up to each one have."""
        return np.cumsum(self.corpus.lengths(most=max(1, self.corpus.documents)) // self.step)

    @property
    def too_short(self) -> int:
        return int((np.diff(self.upto, prepend=0) == 0).sum())

    def __len__(self) -> int:
        return int(self.upto[-1])

    def content(self, number: int) -> np.ndarray:
        document = int(np.searchsorted(self.upto, number, "right"))
        start = (number - (int(self.upto[document - 1]) if document else 0)) * self.step
        return self.corpus.part(document, start, start + self.step)
