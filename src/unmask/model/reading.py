"""Reading: how a text, or a pair of texts, becomes a row that a head can answer."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.text.corpus.examples import Columns

LONGEST = 1 << 14  # tokens of a text, unless the network was trained on longer ones

Text = str | tuple[str, str]  # a text, or a pair of texts


@dataclass(frozen=True)
class Reading:
    """How a text is read."""

    length: int = 0  # most tokens of a text with its frame, or of a pair; longer ones are cut; 0: the model's
    pool: Literal["auto", "mean", "last", "padded", "first"] = (
        "auto"  # one vector of a text: mean, last token, mean with padding on the left, first token of an encoder
        # through a new pooler; auto: the network's own
    )
    strands: Literal["auto", "one", "augment", "augment-one", "both", "published"] = (
        "auto"  # of DNA: one; both averaged; augment: a random one in training, both in answers; augment-one: one
    )
    frame: Literal["auto", "yes", "no"] = "auto"  # bos and eos around a text; auto: yes, but not for DNA

    def __post_init__(self) -> None:
        if self.length < 0:
            raise UserError(f"length must be 0 (the model's) or more tokens; saw {self.length}.")


@dataclass(frozen=True)
class Trained:
    """The texts of its training."""

    pairs: bool | None = None  # whether they were pairs; None: not recorded
    columns: Columns = field(default_factory=Columns)  # where they were in the data
    separators: int = 0  # tokens between the texts of a pair; 0: those of the network

    def __post_init__(self) -> None:
        if not 0 <= self.separators <= 4:
            raise UserError(f"between the texts of a pair are 1 to 4 separators; saw {self.separators}.")


class Encoded(NamedTuple):
    """A text, or a pair of texts, as ids."""

    first: list[int]
    second: list[int] | None = None

    @property
    def size(self) -> int:
        return len(self.first) + len(self.second or ())


class TextBatch(NamedTuple):
    """Rows for the network."""

    tokens: Int[Tensor, "b l"]
    lengths: Int[Tensor, " b"] | None  # None: padding is read like text
    segments: Int[Tensor, "b l"] | None = None  # 0 at the first text of a pair, 1 at the second

    def to(self, device: torch.device) -> "TextBatch":
        lengths, segments = (None if one is None else one.to(device) for one in (self.lengths, self.segments))
        return TextBatch(self.tokens.to(device), lengths, segments)


def shorten(row: Encoded, room: int) -> Encoded:
    """A row of at most `room` ids; of two texts the longer one is cut first, the second of two equally long ones."""
    first, second = row
    if second is None:
        return Encoded(first[:room])
    one, other = len(first), len(second)
    while one + other > room:
        one, other = (one - 1, other) if one > other else (one, other - 1)
    return Encoded(first[:one], second[:other])
