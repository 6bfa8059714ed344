"""Who does the work: the one place that knows how many processes there are."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from unmask.model.transformer import Transformer


@runtime_checkable
class Team(Protocol):
    """Processes that share the rows of each batch."""

    @property
    def rank(self) -> int:
        """Which of them this is; rank 0 prints and writes."""

    @property
    def world(self) -> int:
        """How many there are."""

    def wrap(self, network: Transformer) -> Callable[..., Tensor]:
        """What is called in place of the network, so that gradients are shared."""

    def passing(self, module: Callable[..., Tensor], *, last: bool) -> AbstractContextManager[None]:
        """A context for one pass of several whose gradients add up; they are shared after the last."""

    def sum(self, values: Tensor) -> Tensor:
        """Values added up over all processes."""


@dataclass(frozen=True)
class Alone:
    """One process."""

    rank: int = 0
    world: int = 1

    def wrap(self, network: Transformer) -> Callable[..., Tensor]:
        return network

    def passing(self, module: Callable[..., Tensor], *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        return values
