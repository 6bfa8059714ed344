"""Frame: the special tokens around each text of an encoder, [CLS] text [SEP].

They are given wherever they stand, between two documents too: never hidden, counted or drawn. An encoder was
trained so, and has no idea where it is asked for one of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

SIZE = 2  # tokens that a frame adds to a text


@dataclass(frozen=True)
class Frame:
    """The tokens before and after a text, and the padding of a row."""

    first: int  # [CLS]
    last: int  # [SEP]
    pad: int | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(sorted({self.first, self.last, *(() if self.pad is None else (self.pad,))}))

    def around(self, ids: Iterable[int]) -> list[int]:
        return [self.first, *ids, self.last]

    def marks(self, tokens: np.ndarray) -> np.ndarray:
        """Which of some tokens belong to the frame."""
        return np.isin(tokens, self.ids)


def frame_of(bos: int | None, eos: int | None, pad: int | None) -> Frame | None:
    """The frame of a vocabulary with these special tokens; None: it has no token for one of the two sides."""
    return None if bos is None or eos is None else Frame(bos, eos, pad)
