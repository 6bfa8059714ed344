"""Backbone: a network from tokens, or vectors, and a noise level to logits at the requested positions.

Everything outside `model/` uses a network through this class, and its size through its spec. A backbone is one file
in `model/backbones`: a frozen `Spec` and an `nn.Module`, registered under a name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.registry import Registry
from unmask.text.tokens.export import Inputs
from unmask.text.tokens.tokenizer import Tokenizer


class Spec(ABC):
    """The shape of a network, before it is built. A subclass is a frozen dataclass with at least these fields."""

    name: ClassVar[str]
    registry: ClassVar[Registry[Any]]
    network: ClassVar[type["Backbone"]]  # the class that `build` makes from this spec
    advice: ClassVar[Mapping[str, Any]] = {}  # values that train best, where they differ from the defaults
    vocab: int  # ids, the mask included; derived from the tokenizer
    length: int  # positions of a training row; derived from the data
    width: int  # features per position
    dropout: float
    causal: bool  # a position sees only itself and what is before it; derived from the objective

    @property
    def shown_sigma(self) -> bool:
        """Whether the network takes the noise level as input."""
        return False

    @property
    def offers_sigma(self) -> bool:
        """Whether it takes the noise level as input when an objective prefers that, without being told to."""
        return False

    @property
    def incremental(self) -> bool:
        """Whether the network can read token by token with a cache: `Backbone.read`."""
        return False

    @property
    def blockwise(self) -> bool:
        """Whether the network can predict a block from the clean text before it: `clean` and `size` of `logits`."""
        return False

    @property
    def warms(self) -> bool:
        """Whether the same weights can first be trained causally and later see both sides."""
        return False

    @property
    def carries(self) -> bool:
        """Whether a training step passes a memory of its rows to the next step, whose rows continue them."""
        return False

    def check_lane(self, tokens: int) -> None:
        """Refuse to carry a memory through texts of so many tokens, where they are too short. Where it `carries`."""
        return

    @property
    def limit(self) -> int | None:
        """The most positions it can read, where a table of positions or a filter ends; None: any number."""
        return None

    @property
    def framed(self) -> bool:
        """Whether a text stands between two special tokens, which are given: never hidden, counted or drawn."""
        return False

    @property
    def conjoins(self) -> bool:
        """Whether its published classifiers of DNA answer with the mean of both strands, not with one."""
        return False

    @property
    def inputs(self) -> Inputs | None:
        """What an encoder reads, pairs of texts included; None: it is none, so a pair is `bos one eos other eos`."""
        return None

    def sized(self, *, vocab: int, length: int, causal: bool) -> "Spec":
        """The spec with the sizes of the data and the direction of the objective."""
        return replace(self, vocab=vocab, length=length, causal=causal)  # type: ignore[type-var]

    def reading(self, tokenizer: Tokenizer) -> "Spec":
        """The spec of a new network for text of this tokenizer, where more than the number of its ids matters."""
        return self

    def shown(self, sigma: bool) -> "Spec":
        """The same network with or without the noise level as input; refused if it is not possible."""
        if sigma == self.shown_sigma:
            return self
        raise UserError(f"the backbone {self.name!r} cannot take the noise level as input; choose another objective.")

    def from_autoregressive(self) -> "Spec":
        """The spec, for both phases, of a network that starts from the weights of an autoregressive one."""
        return self

    @abstractmethod
    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        """FLOPs per token of a forward pass, two per multiply-add, with logits at a share `rows` of the positions."""

    @property
    def kept(self) -> float:
        """Floats per token that the backward pass keeps, all layers together, logits aside: an estimate."""
        return 18.0 * self.width


@runtime_checkable
class Memory(Protocol):
    """A network's cache of the rows it has read. Only the network knows its contents."""

    @property
    def filled(self) -> int:
        """Tokens read so far."""

    def take(self, rows: Int[Tensor, " n"]) -> "Memory":
        """The memory of some of the rows."""


@runtime_checkable
class RowMemory(Protocol):
    """A network's cache of one row that is filled block by block."""

    @property
    def filled(self) -> int:
        """Tokens read so far: whole blocks."""


@dataclass(frozen=True)
class RowPiece:
    """A row's part of a blockwise pass: finished text to remember, then a block to predict."""

    tokens: Int[Tensor, " m"]  # from the first token that the memory lacks to the end of the block
    first: int  # position of the block's first token
    wanted: Int[Tensor, " k"]  # columns of the block whose states are needed, in order
    memory: RowMemory
    size: int  # tokens per block
    window: int  # tokens that a block sees, its own included, in every layer: whole blocks of them
    lead: int | None = None  # the token before the block, where there is one


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate and a decay."""

    parameters: tuple[nn.Parameter, ...]
    lr: float = 1.0  # factor on the learning rate of the run
    decay: bool = True  # whether weight decay applies


class Backbone(nn.Module, ABC):
    """A network. `trunk` gives hidden states, `head` turns rows of them into logits."""

    spec: Spec
    constants: ClassVar[frozenset[str]] = frozenset()  # tensors that may be missing from a file
    compute: torch.dtype | None = None  # of matrix products; None: bf16 on CUDA, else that of the parameters
    recompute: bool = False  # activation checkpointing: recompute each unit in the backward pass

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
        """Hidden states that predict all positions (b l d), or the flat positions `rows` (n d).

        x        tokens, or vectors in place of their embeddings
        sigma    the noise level of each row (b) or of each position (b l); ignored where `spec.shown_sigma` is False
        lengths  real positions of each row; the rest is padding at its end that no position sees
        allowed  allowed[i, j]: position i sees position j; replaces the network's own rule
        """

    @abstractmethod
    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        """Logits (.. v) of hidden states (.. d), in float32 or wider."""

    @abstractmethod
    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        """The vectors of tokens."""

    def segmented(self, tokens: Int[Tensor, "b l"], segments: Int[Tensor, "b l"]) -> Float[Tensor, "b l d"]:
        """The vectors of tokens with their segments, 0 for a first text and 1 for a second: an input of `trunk`.

        A network without segments ignores them.
        """
        return self.embed(tokens)

    @property
    @abstractmethod
    def units(self) -> list[nn.Module]:
        """The layers, in order: the units of FSDP and of activation checkpointing."""

    def logits(
        self,
        x: Int[Tensor, "b l"] | Float[Tensor, "b l d"],
        sigma: Float[Tensor, "..."] | None,
        rows: Int[Tensor, " n"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        allowed: Bool[Tensor, "l l"] | None = None,
        clean: Int[Tensor, "b l"] | None = None,
        size: int = 0,
    ) -> Float[Tensor, "n v"]:
        """Logits (n v) that predict the flat positions `rows` only: a `shapes.Network`.

        With `clean` each block of `size` tokens of x is predicted from itself and the clean text before it.
        """
        if clean is not None:
            return self.head(self.block_states(x, clean, size, rows=rows, lengths=lengths, allowed=allowed))
        return self.head(self.trunk(x, sigma, rows=rows, lengths=lengths, allowed=allowed))

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        return self.logits(*arguments, **options)

    def block_states(
        self,
        noisy: Int[Tensor, "b l"],
        clean: Int[Tensor, "b l"],
        size: int,
        *,
        rows: Int[Tensor, " n"],
        lengths: Int[Tensor, " b"] | None = None,
        allowed: Bool[Tensor, "l l"] | None = None,
    ) -> Float[Tensor, "n d"]:
        """Hidden states that predict flat positions of noisy blocks, each given the clean text before it.

        Where `spec.blockwise`. All blocks take one pass, in which no block sees another one's noise.
        """
        raise UserError(cannot_look_blockwise(self.spec))

    def read_blocks(self, pieces: Sequence["RowPiece"]) -> tuple[Float[Tensor, "n d"], list["RowMemory"]]:
        """Hidden states for the wanted columns of a block in each row, and the memories with the text before it.

        Where `spec.blockwise`. Rows are independent: they may be at different blocks.
        """
        raise UserError(cannot_look_blockwise(self.spec))

    def row_memory(self) -> "RowMemory":
        """The empty memory of a row. Where `spec.blockwise`."""
        raise UserError(cannot_look_blockwise(self.spec))

    def read(self, tokens: Int[Tensor, "b m"], memory: Memory) -> tuple[Float[Tensor, "b m d"], Memory]:
        """Read m more tokens; row i of the result predicts the token after token i. Where `spec.incremental`."""
        raise UserError(f"the backbone {self.spec.name!r} cannot read token by token.")

    def memory(self, capacity: int) -> Memory:
        """An empty memory for texts of at most `capacity` tokens. Where `spec.incremental`."""
        raise UserError(f"the backbone {self.spec.name!r} cannot read token by token.")

    def carried(
        self,
        x: Int[Tensor, "b l"],
        sigma: Float[Tensor, "..."] | None,
        rows: Int[Tensor, " n"],
        memory: Tensor | None,
    ) -> tuple[Float[Tensor, "n v"], Tensor]:
        """Logits, given the memory of these rows (b ..) from the previous step, and the memory for the next step.

        Where `spec.carries`. The next rows begin with the last token of these: it is predicted here and read there,
        so the new memory ends before it. The memory is detached: no gradient reaches an earlier step.
        """
        raise UserError(f"the backbone {self.spec.name!r} carries no memory from step to step.")

    def table(self) -> Float[Tensor, "v d"]:
        """The embedding of each token."""
        return self.embed(torch.arange(self.spec.vocab, device=self.device))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def copies(self) -> Mapping[str, str]:
        """Tied tensors: a second name that a file may have for a tensor, and the name that the network has for it."""
        return {}

    @property
    def idle(self) -> list[nn.Parameter]:
        """Parameters that no logit depends on, such as a pooler: an objective does not train them."""
        return []

    def matrices(self) -> dict[nn.Parameter, int]:
        """Weights that Muon updates, and the number of stacked matrices in each."""
        return {p: 1 for unit in self.units for p in unit.parameters() if p.ndim == 2}

    def groups(self) -> list[Group]:
        """All parameters, by learning rate and decay: by default only matrices have decay."""
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
        """Prepare for inference: no gradients, no dropout. `requires_grad_(True)` undoes it."""
        return self.eval().requires_grad_(False)


def cannot_look_blockwise(spec: Spec) -> str:
    """The error for a network that cannot be a block model."""
    return (
        f"the backbone {spec.name!r} cannot look block by block: it has no block diffusion and no cache of blocks. "
        "Use a transformer without time_conditioning."
    )


BACKBONES: Registry[Spec] = Registry("backbone", room="unmask.model.backbones", group="unmask.backbones")


def build(spec: Spec) -> Backbone:
    """The network of a spec, with fresh weights."""
    return spec.network(spec)


def skeleton(spec: Spec) -> Backbone:
    """The network on the meta device: no memory for its weights."""
    with torch.device("meta"):
        return build(spec)


def states_before(hidden: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
    """For networks that predict position i from the state of i − 1: the states moved; the first keeps its own."""
    return torch.cat((hidden[:, :1], hidden[:, :-1]), dim=1)


def rows_before(rows: Int[Tensor, " n"], length: int) -> Int[Tensor, " n"]:
    """The flat positions whose states predict these ones, in rows of this length."""
    return torch.where(rows % length > 0, rows - 1, rows)


@contextmanager
def precision(device: torch.device, compute: torch.dtype | None = None) -> Iterator[None]:
    """Autocast to a type of matrix products; None: bf16 on CUDA, elsewhere the parameters' own type.

    bf16 on some CPUs kills the process: `processes.device.compute_type` tries it before.
    """
    if compute is None:
        compute = torch.bfloat16 if device.type == "cuda" else torch.float32
    if compute == torch.float32:
        yield
    else:
        with torch.autocast(device.type, dtype=compute):
            yield
