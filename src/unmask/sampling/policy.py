"""Policy: where to commit, and where to hide again. What to commit is drawn apart.

A policy is a frozen dataclass and its own setting. It sees rows through a `Look`, says at which positions it needs
the network's answer (`wants`), and which of these are committed now (`choose`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.random import Dice

Memory = tuple[Tensor, ...]  # what a policy remembers between calls; the first dimension of each tensor is b
Draw = Callable[[], Tensor]  # the tokens (n) that would be committed if every position asked for were


@dataclass(frozen=True)
class Look:
    """What a policy sees of the rows that still have something to fill: one window of them."""

    tokens: Int[Tensor, "b w"]
    hidden: Bool[Tensor, "b w"]  # where a token is to come
    dice: Dice  # random numbers, a function of (seed, row, position)
    clock: Int[Tensor, " b"]  # calls that each row has had in this window
    memory: Memory
    mask: int  # the mask's id
    free: Bool[Tensor, "b w"]  # what may ever be drawn in this window: hidden now, or drawn in it before


@runtime_checkable
class Policy(Protocol):
    @property
    def law(self) -> str:
        """What the samples follow: "exact", "grid-T", or "approximate (why)"."""

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """What can be settled before the network is asked anything."""

    def wants(self, look: Look) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        """Where the network's answer is needed, and the noise level σ to show it."""

    def choose(
        self, look: Look, rows: Int[Tensor, " n"], logits: Float[Tensor, "n v"], draw: Draw
    ) -> tuple[Bool[Tensor, " n"], Memory]:
        """Which of these flat positions are committed now. The logits still hold the mask's own."""


@runtime_checkable
class Revising(Protocol):
    """A policy that may hide drawn tokens again."""

    def revise(
        self, look: Look, rows: Int[Tensor, " n"], log_probs: Float[Tensor, " n"]
    ) -> tuple[Bool[Tensor, "b w"], Memory]:
        """Which drawn positions are hidden again, now that `look` holds the tokens just committed at `rows`."""
