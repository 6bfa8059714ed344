"""The autoregressive sampler: left to right, each token read once, thanks to the cache of a causal network."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.backbones.attention import Cache
from unmask.random import Dice
from unmask.sampling.logits import Shape
from unmask.sampling.policy import Draw, Look, Memory
from unmask.sampling.process import Step, fill
from unmask.text.prompt.canvas import Canvas


@dataclass(frozen=True)
class LeftToRight:
    """The leftmost blank, one a call; rows whose prompt reaches further wait, so all rows stand at one position."""

    @property
    def law(self) -> str:
        return "exact for an autoregressive model"

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        return ()

    def wants(self, look: Look) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        column = int(look.hidden.any(0).nonzero()[0])
        here = torch.arange(look.hidden.shape[1], device=look.hidden.device) == column
        return look.hidden & here, torch.zeros(len(look.hidden), device=look.hidden.device)

    def choose(
        self, look: Look, rows: Int[Tensor, " n"], logits: Float[Tensor, "n v"], draw: Draw
    ) -> tuple[Bool[Tensor, " n"], Memory]:
        return torch.ones_like(rows, dtype=torch.bool), look.memory


@runtime_checkable
class Causal(Protocol):
    """A network that reads token by token: `Transformer` with `causal=True`."""

    def extend(self, tokens: Tensor, cache: Cache) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


@dataclass
class Reader:
    """A causal network as a `shapes.Network` that reads every token once.

    It remembers what it has read. When it is shown other rows, because finished ones have left, it reads anew.
    """

    network: Causal
    read: Int[Tensor, "b read"] = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))
    cache: Cache | None = None

    def __call__(
        self,
        x_t: Int[Tensor, "b l"],
        sigma: Float[Tensor, " b"],
        rows: Int[Tensor, " n"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "n v"]:
        """The logits of one position of some rows. Padding lies behind, where a causal network does not look."""
        length = x_t.shape[1]
        position = int(rows[0]) % length
        if not bool((rows % length == position).all()):
            raise ValueError("a reader answers for one position at a time")
        known, seen = x_t[:, :position], self.read.shape[1]
        if self.cache is None or seen >= position or not torch.equal(known[:, :seen], self.read):
            self.cache, seen = Cache(length), 0
        hidden = self.network.extend(known[:, seen:], self.cache)
        self.read = known
        return self.network.head(hidden[rows // length, -1])


def continue_text(network: Causal, canvas: Canvas, *, seed: int = 0, shape: Shape | None = None) -> Iterator[Step]:
    """`fill` for an autoregressive network: prompts are continued to the end of their rows."""
    check_prompts(canvas)
    return fill(Reader(network), canvas, LeftToRight(), seed=seed, shape=shape)


def check_prompts(canvas: Canvas) -> None:
    """Refuse what an autoregressive network cannot do: start from nothing, or look ahead at given text."""
    free = canvas.hidden
    if bool(free[:, 0].any()):
        raise UserError("an autoregressive model continues a text: the first token of every row must be given.")
    real = torch.ones_like(free)
    if canvas.lengths is not None:
        real = torch.arange(free.shape[1], device=free.device) < canvas.lengths[:, None]
    if bool((free[:, :-1] & ~free[:, 1:] & real[:, 1:]).any()):
        raise UserError("an autoregressive model cannot fill blanks before given text; use a masked diffusion model.")
