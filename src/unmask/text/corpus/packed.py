"""Packed: a corpus as rows of one length, for training, read by number."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.spans import Spans
from unmask.text.layout import Layout, Marks, layout_of
from unmask.text.row import Role, Rows

FIT = 0.99  # share of the documents that must fit into a row for `auto` to choose `rows`
SHORTEST = 3  # tokens of a row


def fit_rows(lengths: np.ndarray, length: int) -> bool:
    """Whether there are several documents of these lengths, and nearly all fit into a row with their marks."""
    return len(lengths) > 1 and bool(np.mean(lengths < length - 1) >= FIT)


def length_for(lengths: np.ndarray, *, most: int, share: float = FIT) -> int:
    """The length of `rows` into which this share of the documents fits with its marks: a multiple of 8, or `most`."""
    wanted = int(np.quantile(lengths, share, method="higher")) + 2
    return min(most, -(-wanted // 8) * 8)


def pack_corpus(
    corpus: Corpus, length: int, layout: str | Layout = "stream", *, unscored: tuple[int, ...] = ()
) -> "Packed":
    """A corpus as rows of a layout, with the marks of its vocabulary."""
    ids = corpus.tokenizer
    return Packed(corpus, length, layout_of(layout, Marks(ids["bos"], ids["eos"], ids["pad"], unscored)))


@dataclass(frozen=True)
class Packed:
    """A corpus as `len(packed)` rows of `length` tokens, read by number."""

    corpus: Corpus
    length: int
    layout: Layout

    def __post_init__(self) -> None:
        self.layout.check(self.length, least=SHORTEST)
        if self.layout.whole and self.corpus.stop is not None:
            raise UserError(
                f"packing {self.layout.name!r} needs whole documents, and {self.corpus.folder} has too few to hold "
                "out"
            )
        if len(self) == 0:
            raise UserError(
                f"the data in {self.corpus.folder} has {self.corpus.tokens} tokens in {self.corpus.documents} "
                f"documents: not one row of {self.length} ({self.layout.name}). Use more text or a shorter length."
            )

    @cached_property
    def spans(self) -> Spans:
        return self.layout.spans(self.corpus, self.length)

    def __len__(self) -> int:
        return len(self.spans)

    def rows(
        self,
        numbers: Sequence[int] | np.ndarray,
        *,
        reversed: Sequence[bool] | np.ndarray | None = None,
        complement: np.ndarray | None = None,
    ) -> Rows:
        """The rows with these numbers; of some the other strand of their text, by the `complement` of each id."""
        spans = [self.spans.span(int(number)) for number in numbers]
        contents = [self.corpus.read(*span) for span in spans]
        stored = [self.corpus.roles(*span) for span in spans] if self.corpus.has_roles else []
        if reversed is not None and complement is not None:
            contents = [
                complement[text][::-1] if turn else text for text, turn in zip(contents, reversed, strict=True)
            ]
            stored = [one[::-1] if turn else one for one, turn in zip(stored, reversed, strict=False)]
        return self.written(contents, stored)

    def written(self, contents: Sequence[np.ndarray], stored: Sequence[np.ndarray] = ()) -> Rows:
        """The rows of these contents; `stored` roles of their tokens stand where the layout has text."""
        tokens, roles = self.layout.write(contents, self.length)
        for row, text in zip(roles, stored, strict=False):
            part = row[self.layout.before : self.layout.before + len(text)]
            part[part == Role.FREE] = text[part == Role.FREE]
        return without(Rows(torch.from_numpy(tokens), torch.from_numpy(roles)), self.layout.marks.unscored)

    def stretches(self, starts: Sequence[int] | np.ndarray) -> Int[Tensor, "b l"]:
        """Rows of the stream that begin at these tokens."""
        rows = [self.corpus.read(int(start), int(start) + self.length) for start in starts]
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def without(rows: Rows, unscored: Sequence[int]) -> Rows:
    """Rows in which some ids are given wherever they stand: read, but not hidden, learned or counted."""
    if not unscored:
        return rows
    known = torch.isin(rows.tokens, torch.tensor(unscored, dtype=torch.long)) & (rows.roles != Role.PAD)
    return rows._replace(roles=rows.roles.masked_fill(known, Role.GIVEN))
