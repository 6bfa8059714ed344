"""Row: tokens and what each is for. All rooms read the same roles: training, evaluation, sampling, the server.

GIVEN   read, never hidden: a prompt, context, letters that stand for nothing
MARK    the same for a special token that a layout puts: bos, [CLS], [SEP]
FREE    hidden, learned, counted, drawn
END     learned, but not counted: the padding after the end of a text, where lengths are learned
PAD     not read at all
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor


class Role(IntEnum):
    GIVEN = 0
    MARK = 1
    FREE = 2
    END = 3
    PAD = 4


@dataclass(frozen=True, eq=False)
class Row:
    """One row, and for evaluation the text that it scores."""

    tokens: np.ndarray  # (l), int64
    roles: np.ndarray  # (l), int8
    bytes: float = 0.0  # of the scored text; the bytes of a document are divided evenly among its tokens
    words: float = 0.0  # of the scored text, divided in the same way; 0: not counted
    document: int = 0  # the document in which it begins
    continues: bool = False  # its first token is the last of the row before

    @classmethod
    def after(cls, given: int, tokens: Sequence[int] | np.ndarray, **sizes: Any) -> "Row":
        """A row whose first `given` tokens are given and whose others are free."""
        roles = np.full(len(tokens), Role.FREE, np.int8)
        roles[:given] = Role.GIVEN
        return cls(np.asarray(tokens, np.int64), roles, **sizes)

    @property
    def frozen(self) -> np.ndarray:
        """Which tokens are never hidden."""
        return ~is_predicted(self.roles)

    @property
    def scored(self) -> int:
        """The number of tokens by which its nats are divided."""
        return int((self.roles == Role.FREE).sum())


def is_predicted(roles: np.ndarray) -> np.ndarray:
    """Which positions are hidden and learned."""
    return (roles == Role.FREE) | (roles == Role.END)


class Rows(NamedTuple):
    """A batch of rows of one length, for training."""

    tokens: Int[Tensor, "b l"]
    roles: Int8[Tensor, "b l"]
    begins: bool = False  # a network that carries a memory must forget the step before: these rows begin their texts

    @classmethod
    def of(
        cls, tokens: Int[Tensor, "b l"], real: Bool[Tensor, "b l"], free: Bool[Tensor, "b l"] | None = None
    ) -> "Rows":
        """Rows whose `real` tokens count. What else is `free` is learned, the rest given; None: it is padding."""
        rest = torch.full(tokens.shape, Role.PAD, dtype=torch.int8)
        if free is not None:
            rest = torch.where(free, Role.END, Role.GIVEN).to(torch.int8)
        return cls(tokens, torch.where(real, Role.FREE, rest).to(torch.int8))

    @property
    def real(self) -> Bool[Tensor, "b l"]:
        """The tokens by whose number nats are divided."""
        return self.roles == Role.FREE

    @property
    def frozen(self) -> Bool[Tensor, "b l"] | None:
        """The tokens that are never hidden; None: there are none."""
        hidden = (self.roles == Role.FREE) | (self.roles == Role.END)
        return None if bool(hidden.all()) else ~hidden

    @property
    def lengths(self) -> Int[Tensor, " b"] | None:
        """The positions of each row that are read; None: all."""
        read = self.roles != Role.PAD
        return None if bool(read.all()) else read.sum(1)
