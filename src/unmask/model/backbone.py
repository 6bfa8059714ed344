"""Backbone: a network from passes (tokens or vectors, positions, who sees whom) to hidden states and logits.

Everything outside `model/` uses a network through this class, and its size through its spec. A backbone is one file
in `model/backbones`: a frozen `Spec` and an `nn.Module`, registered under a name.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.errors import UserError
from unmask.model.linear import linear
from unmask.model.passing import Abilities, Causal, Full, Pass, Rule, Sees, States, check
from unmask.registry import Registry
from unmask.settings import at_least
from unmask.text.tokens.export import Inputs
from unmask.text.tokens.tokenizer import Tokenizer


class Spec(ABC):
    """The shape of a network, before it is built. A subclass is a frozen dataclass with at least these fields."""

    name: ClassVar[str]
    registry: ClassVar[Registry[Any]]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # a subclass is a dataclass, and types may rely on it
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
    def abilities(self) -> Abilities:
        """The passes that the network can run."""
        return Abilities(frozenset({Causal if self.causal else Full}))

    @property
    def before(self) -> bool:
        """Whether position i is predicted from the hidden state of i − 1."""
        return self.causal

    @property
    def own_rule(self) -> Sees:
        """Who sees whom in the passes it is trained for."""
        return Causal() if self.causal else Full()

    @property
    def incremental(self) -> bool:
        """Whether the network can read token by token with a memory."""
        return self.causal and self.abilities.memory

    @property
    def blockwise(self) -> bool:
        """Whether the network can predict a block from the clean text before it, which it remembers."""
        can = self.abilities
        return can.memory and can.positions and Rule in can.sees and not (self.causal or self.shown_sigma)

    @property
    def warms(self) -> bool:
        """Whether the same weights can first be trained causally and later see both sides."""
        return False

    @property
    def carries(self) -> bool:
        """Whether a training step passes a memory of its rows to the next step, whose rows continue them."""
        return self.abilities.carried

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
        return replace(self, vocab=vocab, length=length, causal=causal)

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

    def in_place(self) -> "Spec":
        """The spec of a network that predicts each position at its own place, whatever its weights did before."""
        return self

    @abstractmethod
    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        """FLOPs per token of a forward pass, two per multiply-add, with logits at a share `rows` of the positions."""

    @property
    def activations(self) -> float:
        """Floats per token that the backward pass keeps, all layers together, logits aside: an estimate."""
        return 18.0 * self.width

    def check_sizes(self, *names: str) -> None:
        """Refuse sizes below 1, and a dropout that is no probability."""
        at_least(1, **{name: getattr(self, name) for name in ("vocab", "length", "width", "blocks", *names)})
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be in [0, 1), not {self.dropout}.")

    def check_forward(self) -> None:
        """Refuse to look ahead, for a network that reads forward only."""
        if not self.causal:
            raise UserError(
                f"the backbone {self.name!r} reads forward only, so it cannot fill in masks: choose the objective "
                "'ar', or another backbone."
            )


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate and a decay."""

    parameters: tuple[nn.Parameter, ...]
    lr: float = 1.0  # factor on the learning rate of the run
    decay: bool = True  # whether weight decay applies


@runtime_checkable
class Reader(Protocol):
    """What runs passes: a `Backbone`, or something around one."""

    spec: Spec

    def run(self, p: Pass) -> States: ...

    def head(self, hidden: Tensor) -> Tensor: ...


class Backbone(nn.Module, ABC):
    """A network. `run` gives the hidden states of a pass, `head` turns hidden states into logits."""

    spec: Spec
    constants: ClassVar[frozenset[str]] = frozenset()  # tensors that may be missing from a file
    stacked: Mapping[str, int] = {}  # matrices in the tensors whose names have such a part; 1 in others
    unstacked: tuple[str, ...] = ()  # parts of the names of matrices that are left to AdamW
    stores: ClassVar[bool] = False  # can keep weights in the type of their file, and widens them when they are used
    compute: torch.dtype | None = None  # of matrix products; None: bf16 on CUDA, else that of the parameters
    recompute: bool = False  # activation checkpointing: recompute each unit in the backward pass

    @abstractmethod
    def forward(self, p: Pass) -> States:
        """The hidden states of a pass that suits `spec.abilities`, and the memory after it, if there is one."""

    def run(self, p: Pass) -> States:
        """The same; a pass that the network cannot run is refused."""
        check(p, self.spec.abilities, self.spec.name)
        states: States = self(p)
        return states

    @abstractmethod
    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        """Logits (.. v) of hidden states (.. d), in float32 or wider."""

    def product(
        self, hidden: Float[Tensor, "*shape d"], weight: Float[Tensor, "v d"], bias: Float[Tensor, " v"] | None = None
    ) -> Float[Tensor, "*shape v"]:
        """Hidden states times a matrix of the head, in float32 or wider."""
        with precision(hidden.device, self.compute):
            logits = linear(hidden, weight, bias)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def run_layer(self, layer: nn.Module, *given: Any) -> Any:
        """The output of one layer, which the backward pass computes again if activations are not kept."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(layer, *given, use_reentrant=False)
        return layer(*given)

    @abstractmethod
    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        """The vectors of tokens."""

    @property
    def units(self) -> list[nn.Module]:
        """The layers, in order: the units of FSDP and of activation checkpointing."""
        layers = self.layers
        assert isinstance(layers, nn.ModuleList)
        return list(layers)

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
        named = [pair for unit in self.units for pair in unit.named_parameters()]
        own = [(name, p) for name, p in named if p.ndim == 2 and not any(part in name for part in self.unstacked)]
        return {p: next((n for part, n in self.stacked.items() if part in name), 1) for name, p in own}

    def decays(self, name: str, p: nn.Parameter) -> bool:
        """Whether weight decay applies to a parameter: to matrices alone."""
        return p.ndim >= 2

    def groups(self) -> list[Group]:
        """All parameters, by learning rate and decay."""
        named = list(self.named_parameters())
        return [
            Group(tuple(p for name, p in named if self.decays(name, p) is yes), decay=yes) for yes in (True, False)
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


BACKBONES: Registry[Spec] = Registry("backbone", room="unmask.model.backbones", group="unmask.backbones")


def build(spec: Spec) -> Backbone:
    """The network of a spec, with fresh weights."""
    return spec.network(spec)


def skeleton(spec: Spec) -> Backbone:
    """The network on the meta device: no memory for its weights."""
    with torch.device("meta"):
        return build(spec)


def precision(device: torch.device, compute: torch.dtype | None = None) -> AbstractContextManager[object]:
    """Autocast to a type of matrix products; None: bf16 on CUDA, elsewhere the parameters' own type.

    bf16 on some CPUs kills the process: `processes.device.compute_type` tries it before.
    """
    kind = product_type(device, compute)
    if kind is None:
        return nullcontext()
    autocast: AbstractContextManager[object] = torch.autocast(device.type, dtype=kind)
    return autocast


def product_type(device: torch.device, compute: torch.dtype | None) -> torch.dtype | None:
    """The small type of matrix products under `precision`; None: that of the parameters."""
    if compute is None and device.type == "cuda":
        return torch.bfloat16
    return None if compute == torch.float32 else compute
