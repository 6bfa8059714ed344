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
    def left_out(self) -> str:
        """What to say of documents that are in no row; empty: there are none."""

    def __len__(self) -> int: ...

    def span(self, number: int) -> tuple[int, int]:
        """Where the tokens of a row begin and end in the stream, without the marks that a layout adds."""


@dataclass(frozen=True)
class Stretches:
    """The stream of all documents, cut every `step` tokens; its incomplete end is left out."""

    corpus: Corpus
    step: int
    left_out = ""

    def __len__(self) -> int:
        return self.corpus.tokens // self.step

    def span(self, number: int) -> tuple[int, int]:
        return number * self.step, (number + 1) * self.step


@dataclass(frozen=True)
class Documents:
    """The first `most` tokens of each document."""

    corpus: Corpus
    most: int
    left_out = ""

    def __len__(self) -> int:
        return self.corpus.documents

    def span(self, number: int) -> tuple[int, int]:
        start, stop = self.corpus.span(number)
        return start, min(stop, start + self.most)


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
    def left_out(self) -> str:
        too_short = int((np.diff(self.upto, prepend=0) == 0).sum())
        if not too_short:
            return ""
        return (
            f"{too_short:,} of {self.corpus.documents:,} training sequences are shorter than a row of {self.step} "
            "and are left out: a smaller --length takes them in."
        )

    def __len__(self) -> int:
        return int(self.upto[-1])

    def span(self, number: int) -> tuple[int, int]:
        document = int(np.searchsorted(self.upto, number, "right"))
        piece = number - (int(self.upto[document - 1]) if document else 0)
        start = self.corpus.span(document)[0] + piece * self.step
        return start, start + self.step
