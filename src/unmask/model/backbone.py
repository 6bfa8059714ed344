"""Backbone: a network that turns tokens, or vectors, and a noise level into logits at the positions it is asked for.

Everything outside `model/` speaks to a network through this class, and knows its size through its spec. A backbone is
one file in `model/backbones`: a frozen `Spec` and an `nn.Module`, registered under a name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.registry import Registry


class Spec(ABC):
    """The shape of a network, before it is built. A subclass is a frozen dataclass with at least these fields."""

    name: ClassVar[str]
    registry: ClassVar[Registry[Any]]
    network: ClassVar[type["Backbone"]]  # what it is the spec of
    advice: ClassVar[Mapping[str, Any]] = {}  # values that train best, where they differ from the defaults
    vocab: int  # ids, the mask included; derived from the tokenizer
    length: int  # positions of a training row; derived from the data
    width: int  # features of a position
    dropout: float
    causal: bool  # a position sees only itself and what is before it; derived from the objective

    @property
    def shown_sigma(self) -> bool:
        """Whether the network is shown the noise level."""
        return False

    @property
    def incremental(self) -> bool:
        """Whether the network can go on reading from a memory: `Backbone.read`."""
        return False

    @property
    def warms(self) -> bool:
        """Whether the same weights can be causal first and see both sides later."""
        return False

    @property
    def carries(self) -> bool:
        """Whether a training step hands a memory of its rows to the next one, whose rows continue them."""
        return False

    def sized(self, *, vocab: int, length: int, causal: bool) -> "Spec":
        """The spec for some data and an objective."""
        return replace(self, vocab=vocab, length=length, causal=causal)  # type: ignore[type-var]

    def shown(self, sigma: bool) -> "Spec":
        """The same network, shown the noise level or not; refused where it cannot be."""
        if sigma == self.shown_sigma:
            return self
        raise UserError(f"the backbone {self.name!r} cannot be shown the noise level; choose another objective.")

    def from_autoregressive(self) -> "Spec":
        """The spec of a network that begins with the weights of an autoregressive one, in both phases."""
        return self

    @abstractmethod
    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        """Operations per token of a forward pass, two per multiply-add, a share `rows` of positions asked for."""

    @property
    def kept(self) -> float:
        """Floats per token that the backward pass keeps, all layers together, logits aside: an estimate."""
        return 18.0 * self.width


@runtime_checkable
class Memory(Protocol):
    """What a network remembers of the rows it has read. Nobody but the network looks inside."""

    @property
    def filled(self) -> int:
        """Tokens read so far."""

    def take(self, rows: Int[Tensor, " n"]) -> "Memory":
        """The memory of some of the rows."""


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate and a decay."""

    parameters: tuple[nn.Parameter, ...]
    lr: float = 1.0  # times the learning rate of the run
    decay: bool = True  # whether weight decay applies


class Backbone(nn.Module, ABC):
    """A network. `trunk` gives hidden states, `head` turns rows of them into logits."""

    spec: Spec
    constants: ClassVar[frozenset[str]] = frozenset()  # tensors that a file may leave out
    recompute: bool = False  # forget what a unit computed, and compute it again in the backward pass

    @abstractmethod
    def trunk(
        self,
        x: Int[Tensor, "b l"] | Float[Tensor, "b l d"],
        sigma: Float[Tensor, "..."] | None = None,
        *,
        rows: Int[Tensor, " n"] | None = None,
        lengths: Int[Tensor, " b"] | None = None,
        allowed: Bool[Tensor, "l l"] | None = None,
    ) -> Float[Tensor, "b l d"] | Float[Tensor, "n d"]:
        """Hidden states from which all positions (b l d), or the flat positions `rows` (n d), are predicted.

        x        tokens, or vectors in the place of their embeddings
        sigma    the noise level of each row (b) or of each position (b l); ignored where `spec.shown_sigma` is False
        lengths  how many positions of each row are real; the rest is padding at its end that nobody sees
        allowed  allowed[i, j] lets position i see position j, in place of the network's own rule
        """

    @abstractmethod
    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        """Logits (.. v) of hidden states (.. d), in float32 or wider."""

    @abstractmethod
    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        """The vectors of tokens."""

    @property
    @abstractmethod
    def units(self) -> list[nn.Module]:
        """The layers, in order: what FSDP cuts the network into, and what is recomputed one at a time."""

    def logits(
        self,
        x: Int[Tensor, "b l"] | Float[Tensor, "b l d"],
        sigma: Float[Tensor, "..."] | None,
        rows: Int[Tensor, " n"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        allowed: Bool[Tensor, "l l"] | None = None,
    ) -> Float[Tensor, "n v"]:
        """Logits (n v) that predict the flat positions `rows`, and no others: a `shapes.Network`."""
        return self.head(self.trunk(x, sigma, rows=rows, lengths=lengths, allowed=allowed))

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        return self.logits(*arguments, **options)

    def read(self, tokens: Int[Tensor, "b m"], memory: Memory) -> tuple[Float[Tensor, "b m d"], Memory]:
        """Read m more tokens; row i of the result predicts the token after token i. Where `spec.incremental`."""
        raise UserError(f"the backbone {self.spec.name!r} cannot read token by token.")

    def memory(self, capacity: int) -> Memory:
        """A memory of nothing, for texts of at most so many tokens. Where `spec.incremental`."""
        raise UserError(f"the backbone {self.spec.name!r} cannot read token by token.")

    def carried(
        self,
        x: Int[Tensor, "b l"],
        sigma: Float[Tensor, "..."] | None,
        rows: Int[Tensor, " n"],
        memory: Tensor | None,
    ) -> tuple[Float[Tensor, "n v"], Tensor]:
        """Logits, given what an earlier step remembered of these rows (b ..), and what to remember of this one.

        Where `spec.carries`. The memory is detached: no gradient reaches an earlier step.
        """
        raise UserError(f"the backbone {self.spec.name!r} carries nothing from step to step.")

    def table(self) -> Float[Tensor, "v d"]:
        """The embedding of each token."""
        return self.embed(torch.arange(self.spec.vocab, device=self.device))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def matrices(self) -> dict[nn.Parameter, int]:
        """Weights that Muon moves orthogonally, and how many matrices lie side by side in each."""
        return {p: 1 for unit in self.units for p in unit.parameters() if p.ndim == 2}

    def groups(self) -> list[Group]:
        """All parameters, by learning rate and decay: by default decay is on matrices alone."""
        everything = list(self.parameters())
        return [
            Group(tuple(p for p in everything if p.ndim >= 2)),
            Group(tuple(p for p in everything if p.ndim < 2), decay=False),
        ]

    def pool(self, hidden: Float[Tensor, "b l d"], lengths: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b d"]:
        """One vector per row, for classification: the mean over its real positions."""
        if lengths is None:
            return hidden.mean(1)
        real = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
        return (hidden * real[..., None]).sum(1) / lengths[:, None]

    def freeze(self) -> "Backbone":
        """Make it ready for inference: no gradients, no dropout. `requires_grad_(True)` undoes it."""
        return self.eval().requires_grad_(False)


BACKBONES: Registry[Spec] = Registry("backbone", room="unmask.model.backbones", group="unmask.backbones")


def build(spec: Spec) -> Backbone:
    """The network of a spec, with fresh weights."""
    return spec.network(spec)


def skeleton(spec: Spec) -> Backbone:
    """The network without memory for its weights."""
    with torch.device("meta"):
        return build(spec)


@contextmanager
def precision(device: torch.device) -> Iterator[None]:
    """bf16 autocast on CUDA; elsewhere the parameters' own type, because bf16 on some CPUs kills the process."""
    if device.type == "cuda":
        with torch.autocast("cuda", dtype=torch.bfloat16):
            yield
    else:
        yield
