"""Rows for training: a corpus packed into rows of one length. Three packings:

    stream   the documents one after another, an eos between them, cut every l tokens: no token is wasted
    wrap     the same cut every l - 2 tokens, each row between bos and eos: as in the MDLM paper
    rows     one document per row between bos and eos, cut off at l or padded: as in the paper for LM1B

Training needs rows of equal length, so it drops the incomplete last row of `stream` and `wrap`, and the tokens of a
document beyond l with `rows`. Evaluation (passages.py) has packings of the same names and scores such ends, except
with `wrap`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError, unknown
from unmask.text.corpus.corpus import Corpus

WAYS = ("stream", "wrap", "rows")  # the packings; passages.py has the same names for evaluation


class Batch(NamedTuple):
    tokens: Int[Tensor, "b l"]
    real: Bool[Tensor, "b l"]  # False on padding


@dataclass(frozen=True)
class Packed:
    """A corpus as `len(packed)` rows of `length` tokens, read by number."""

    corpus: Corpus
    length: int
    way: str = "stream"

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise unknown("packing", self.way, WAYS)
        if self.length < 3:
            raise UserError(f"rows must be at least 3 tokens long, not {self.length}")
        if self.way != "stream" and None in (self.corpus.tokenizer["bos"], self.corpus.tokenizer["eos"]):
            raise UserError(f"packing {self.way!r} needs a tokenizer with bos and eos; use 'stream'")
        if self.way == "rows" and self.corpus.stop is not None:
            raise UserError(f"packing 'rows' needs whole documents, and {self.corpus.folder} has too few to hold out")
        if len(self) == 0:
            raise UserError(
                f"the data in {self.corpus.folder} has {self.corpus.tokens} tokens: not one row of "
                f"{self.length}. Use more text or a shorter length."
            )

    def __len__(self) -> int:
        if self.way == "rows":
            return self.corpus.documents
        return self.corpus.tokens // self._step

    @property
    def _step(self) -> int:
        return self.length if self.way == "stream" else self.length - 2

    def rows(self, numbers: Sequence[int] | np.ndarray) -> Batch:
        """The rows with these numbers."""
        ids = self.corpus.tokenizer
        filler = ids["eos"] if ids["pad"] is None else ids["pad"]  # where `real` is False the token is never used
        tokens = np.full((len(numbers), self.length), filler if self.way == "rows" else 0, np.int64)
        real = np.ones(tokens.shape, bool)
        for row, (number, into) in enumerate(zip(numbers, tokens, strict=True)):
            content = self._content(int(number))
            if self.way == "stream":
                into[:] = content
            else:
                into[0], into[1 : len(content) + 1], into[len(content) + 1] = ids["bos"], content, ids["eos"]
                real[row, len(content) + 2 :] = False
        return Batch(torch.from_numpy(tokens), torch.from_numpy(real))

    def _content(self, number: int) -> np.ndarray:
        if self.way == "rows":
            return self.corpus.document(number)[: self.length - 2]
        return self.corpus.read(number * self._step, (number + 1) * self._step)
