"""Windows: which part of a canvas is filled next, and which part the network sees meanwhile."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from unmask.errors import UserError


class Span(NamedTuple):
    """The network sees start..stop; the blanks in first..last are filled."""

    start: int
    stop: int
    first: int
    last: int


@runtime_checkable
class Windows(Protocol):
    def spans(self, length: int) -> list[Span]:
        """The windows of a canvas, from left to right; together they fill every position once."""


@dataclass(frozen=True)
class Whole:
    """One window: the network sees everything, and anything may be filled next."""

    def spans(self, length: int) -> list[Span]:
        return [Span(0, length, 0, length)]


@dataclass(frozen=True)
class Sliding:
    """Semi-autoregressive: `context` tokens at once, then `stride` more, seeing the last `context` only. [MDLM]

    For text of any length, longer than the network was trained on.
    """

    context: int  # tokens the network sees
    stride: int  # tokens added by each window after the first

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= self.context:
            raise UserError(f"the stride must lie in 1..{self.context}, the context; saw {self.stride}.")

    def spans(self, length: int) -> list[Span]:
        ends = [min(self.context, length)]
        while ends[-1] < length:
            ends.append(min(ends[-1] + self.stride, length))
        firsts = [0, *ends[:-1]]
        return [Span(max(0, end - self.context), end, first, end) for first, end in zip(firsts, ends, strict=True)]


@dataclass(frozen=True)
class Blocks:
    """Blocks from left to right, the network seeing the whole canvas, masks ahead included. [LLaDA]"""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"a block needs at least one token; saw {self.size}.")

    def spans(self, length: int) -> list[Span]:
        return [Span(0, length, first, min(first + self.size, length)) for first in range(0, length, self.size)]
