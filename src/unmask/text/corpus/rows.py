"""Rows for training: a corpus packed into rows of one length. Five packings:

    stream   the documents one after another, an eos between them, cut every l tokens: no token is wasted
    wrap     the same cut every l - 2 tokens, each row between bos and eos: as in the MDLM paper
    rows     one document per row after a bos, then eos up to the end of the row: lengths are learned
    padded   one document per row between bos and eos, its length given to the network: as in the paper for LM1B
    windows  each document cut every l tokens, without marks; its incomplete end is left out: for sequences

With `rows` the padding is part of what is learned: all positions but the bos are hidden and predicted, so that a
sample ends by itself, at its first eos. A row is a function of its document, so the nats of the row bound −log p
of the document. They are divided by the tokens of the document and its first eos only (`real`): easy padding makes no
number look better. A document of l - 1 tokens or more is cut, and then has no eos: it has not ended.

With `padded` the network never sees the padding. It cannot choose a length, and its nats are given the length.

Encoders have `framed` rows, packed as `wrap` or `padded`: bos, eos and padding are given (tokens/frame.py).

Letters of DNA that stand for no base (`unscored`, tokens/alphabets.py) are seen and never hidden, learned or counted.

Training needs rows of equal length, so it drops the incomplete last row of `stream` and `wrap`, and the tokens of a
document beyond l with `rows` and `padded`. Evaluation (passages.py) scores such ends, except with `wrap`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError, unknown
from unmask.text.corpus.corpus import Corpus
from unmask.text.tokens.frame import Frame, frame_of

WAYS = ("stream", "wrap", "rows", "padded", "windows")
WHOLE = ("rows", "padded", "windows")  # rows that begin with a document, or within one: they need whole documents
FRAMED = ("wrap", "padded")  # for encoders
FIT = 0.99  # share of the documents that must fit into a row for `auto` to choose `rows`


class Batch(NamedTuple):
    tokens: Int[Tensor, "b l"]
    real: Bool[Tensor, "b l"]  # tokens of the text, by whose number nats are divided
    free: Bool[Tensor, "b l"] | None = None  # what is hidden and learned; None: `real`, and the rest is not seen
    lengths: Int[Tensor, " b"] | None = None  # with `free`: the positions of each row that are seen; None: all

    @property
    def begins(self) -> bool:
        """Whether a network that carries a memory must forget the step before; rows without lanes never say so."""
        return False


def packing_for(lengths: np.ndarray, length: int) -> str:
    """The packing `auto` for documents of these lengths: `rows` if there are several and nearly all fit."""
    return "rows" if len(lengths) > 1 and np.mean(lengths < length - 1) >= FIT else "stream"


def length_for(lengths: np.ndarray, *, most: int) -> int:
    """The length of `rows` into which nearly all documents fit with bos and eos: a multiple of 8, at most `most`."""
    wanted = int(np.quantile(lengths, FIT, method="higher")) + 2
    return min(most, -(-wanted // 8) * 8)


@dataclass(frozen=True)
class Packed:
    """A corpus as `len(packed)` rows of `length` tokens, read by number."""

    corpus: Corpus
    length: int
    way: str = "stream"
    framed: bool = False  # for an encoder: the special tokens around a text are given
    unscored: tuple[int, ...] = ()  # ids that are given wherever they stand

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise unknown("packing", self.way, WAYS)
        if self.frame is not None and self.way not in FRAMED:
            raise UserError(
                f"the rows of an encoder stand between two special tokens, which the packing {self.way!r} does not "
                f"have: use --text.pack {' or '.join(FRAMED)}."
            )
        if self.length < 3:
            raise UserError(f"rows must be at least 3 tokens long, not {self.length}")
        marked = self.way not in ("stream", "windows")
        if marked and None in (self.corpus.tokenizer["bos"], self.corpus.tokenizer["eos"]):
            raise UserError(f"packing {self.way!r} needs a tokenizer with bos and eos; use 'stream'")
        if self.way in WHOLE and self.corpus.stop is not None:
            raise UserError(
                f"packing {self.way!r} needs whole documents, and {self.corpus.folder} has too few to hold out"
            )
        if len(self) == 0:
            raise UserError(
                f"the data in {self.corpus.folder} has {self.corpus.tokens} tokens in {self.corpus.documents} "
                f"documents: not one row of {self.length} ({self.way}). Use more text or a shorter length."
            )

    @property
    def frame(self) -> Frame | None:
        ids = self.corpus.tokenizer
        return frame_of(ids["bos"], ids["eos"], ids["pad"]) if self.framed else None

    @property
    def one_each(self) -> bool:
        """Whether a row holds one document."""
        return self.way in ("rows", "padded")

    def __len__(self) -> int:
        if self.one_each:
            return self.corpus.documents
        if self.way == "windows":
            return int(self._windows[-1])
        return self.corpus.tokens // self._step

    @property
    def too_short(self) -> int:
        """With `windows`: documents shorter than a row, of which nothing is in any row."""
        return int((np.diff(self._windows, prepend=0) == 0).sum()) if self.way == "windows" else 0

    @cached_property
    def _windows(self) -> np.ndarray:
        """How many windows the documents up to each one have."""
        return np.cumsum(self.corpus.lengths(most=max(1, self.corpus.documents)) // self.length)

    @property
    def _step(self) -> int:
        return self.length if self.way == "stream" else self.length - 2

    def rows(
        self,
        numbers: Sequence[int] | np.ndarray,
        *,
        reversed: Sequence[bool] | np.ndarray | None = None,
        complement: np.ndarray | None = None,
    ) -> Batch:
        """The rows with these numbers; of some the other strand of their text, by the `complement` of each id."""
        contents = [self._content(int(number)) for number in numbers]
        if reversed is not None and complement is not None:
            flipped = zip(contents, reversed, strict=True)
            contents = [complement[content][::-1] if turn else content for content, turn in flipped]
        return without(self._batch(contents), self.unscored)

    def _batch(self, contents: Sequence[np.ndarray]) -> Batch:
        ids = self.corpus.tokenizer
        if self.way in ("stream", "windows"):
            tokens = np.stack(contents).astype(np.int64)
            return Batch(torch.from_numpy(tokens), torch.ones(tokens.shape, dtype=torch.bool))
        filler = ids["eos"] if self.way == "rows" or ids["pad"] is None else ids["pad"]
        tokens = np.full((len(contents), self.length), filler, np.int64)
        tokens[:, 0] = ids["bos"]
        for into, content in zip(tokens, contents, strict=True):
            into[1 : len(content) + 1] = content
            into[len(content) + 1 : len(content) + 2] = ids["eos"]  # nothing, where the content fills the row
        ends = np.array([len(content) + 2 for content in contents])[:, None]
        real = torch.from_numpy(np.arange(self.length) < ends)
        if self.frame is not None:
            text = torch.from_numpy(~self.frame.marks(tokens))
            return Batch(torch.from_numpy(tokens), text, text, None if self.way == "wrap" else real.sum(1))
        if self.way != "rows":
            return Batch(torch.from_numpy(tokens), real)
        free = torch.ones_like(real)
        free[:, 0] = real[:, 0] = False  # the bos is given, also when a text is sampled
        return Batch(torch.from_numpy(tokens), real, free)

    def stretches(self, starts: Sequence[int] | np.ndarray) -> Int[Tensor, "b l"]:
        """Rows of the stream that begin at these tokens."""
        rows = [self.corpus.read(int(start), int(start) + self.length) for start in starts]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def _content(self, number: int) -> np.ndarray:
        if self.one_each:
            return self.corpus.document(number)[: self.length - (1 if self.way == "rows" else 2)]
        if self.way == "windows":
            document = int(np.searchsorted(self._windows, number, "right"))
            start = (number - (int(self._windows[document - 1]) if document else 0)) * self.length
            return self.corpus.part(document, start, start + self.length)
        return self.corpus.read(number * self._step, (number + 1) * self._step)


def without(batch: Batch, unscored: Sequence[int]) -> Batch:
    """A batch in which some ids are given wherever they stand: seen, but not hidden, learned or counted."""
    known = torch.isin(batch.tokens, torch.tensor(unscored, dtype=torch.long)) if unscored else None
    if known is None or not bool(known.any()):
        return batch
    lengths = batch.lengths
    if batch.free is None and not bool(batch.real.all()):
        lengths = batch.real.sum(1)
    free = batch.real if batch.free is None else batch.free
    return Batch(batch.tokens, batch.real & ~known, free & ~known, lengths)
