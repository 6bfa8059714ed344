"""Adapters (LoRA): low-rank updates of linear layers, learned while the weights of the base stay as they are.

A layer with an update has W + (alpha / rank) · B · A in the place of its weight. The two products are kept apart: the
matrix B · A is never made, in training neither. `merged` makes it, for a network without updates.
A network is not changed for this: any of its `nn.Linear` layers can have an update, however it uses the weight.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.errors import UserError, unknown
from unmask.model.backbone import Backbone
from unmask.settings import at_least

PART = "adapter"  # the learned part of a `Learner`
MOST_RANK = 4096  # of a file


@dataclass(frozen=True)
class Adapter:
    """LoRA: train small matrices beside the weights of --init, which stay as they are."""

    rank: int = 0  # rank of the updates; 0: no adapter, all weights are trained
    alpha: float = 16.0  # the updates are multiplied by alpha / rank
    dropout: float = 0.0  # dropout of what the updates read, in training
    targets: tuple[str, ...] = ()  # linear layers that get one, such as attn_qkv mlp.0; none: all in the blocks

    def __post_init__(self) -> None:
        at_least(0, **{"adapter.rank": self.rank})
        if not 0 <= self.dropout < 1:
            raise UserError(f"adapter.dropout must be at least 0 and below 1, not {self.dropout}.")
        if not math.isfinite(self.alpha) or self.alpha <= 0:
            raise UserError(f"adapter.alpha must be a number above 0, not {self.alpha}.")
        if not self.rank and (self.alpha, self.dropout, self.targets) != (16.0, 0.0, ()):
            raise UserError("an adapter needs a rank of at least 1: give --adapter.rank 8.")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def layers(self, network: Backbone) -> dict[str, nn.Linear]:
        """The layers of a network that get an update, by name; refuses targets and ranks that do not fit."""
        known = {
            name: one for name, one in network.named_modules() if type(one) is nn.Linear and one.weight is not None
        }
        for target in self.targets:
            if not any(fits(name, target) for name in known):
                raise unknown("linear layer of this network", target, short_names(known))
        inside = {module for unit in network.units for module in unit.modules()}
        chosen = {
            name: one
            for name, one in known.items()
            if (any(fits(name, target) for target in self.targets) if self.targets else one in inside)
        }
        small = {name: one for name, one in chosen.items() if self.rank > min(one.in_features, one.out_features)}
        if small and (self.targets or len(small) == len(chosen)):
            name, one = next(iter(small.items()))
            raise UserError(
                f"adapter.rank {self.rank} is more than the layer {name} has, which is {one.in_features} by "
                f"{one.out_features}: give a smaller rank, or other targets."
            )
        if not chosen:
            raise UserError(f"the blocks of this {network.spec.name} have no linear layers: it takes no adapter.")
        return {name: one for name, one in chosen.items() if name not in small}

    def parameters(self, network: Backbone) -> int:
        """The number of weights of its updates."""
        return sum(self.rank * (one.in_features + one.out_features) for one in self.layers(network).values())


def fits(name: str, target: str) -> bool:
    """Whether a layer is meant by a target: its name, or the end of it, as in peft."""
    return name == target or name.endswith(f".{target}")


def short_names(names: Iterable[str]) -> set[str]:
    """The names of layers without what comes before and after the number of a block."""
    return {".".join(parts[next((i + 1 for i, p in enumerate(parts) if p.isdigit()), 0) :]) or name
            for name in names for parts in [name.split(".")]}  # fmt: skip


class LowRankUpdates(nn.Module):
    """The matrices A (rank, in) and B (out, rank) of every layer with an update."""

    def __init__(self, network: Backbone, adapter: Adapter) -> None:
        super().__init__()
        self.adapter = adapter
        self.names = list(adapter.layers(network))
        device = network.device
        for name in self.names:
            layer = network.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            down = torch.empty(adapter.rank, layer.in_features, device=device)
            nn.init.kaiming_uniform_(down, a=math.sqrt(5))
            self.register_parameter(key("A", name), nn.Parameter(down))
            up = torch.zeros(layer.out_features, adapter.rank, device=device)
            self.register_parameter(key("B", name), nn.Parameter(up))

    def pair(self, name: str) -> tuple[Tensor, Tensor]:
        """A, and B times the scale, of a layer."""
        return self.get_parameter(key("A", name)), self.get_parameter(key("B", name)) * self.adapter.scale

    @torch.no_grad()
    def update(self, name: str) -> Tensor:
        """What is added to the weight of a layer."""
        down, up = self.pair(name)
        return up.to(at_least_float32(up)) @ down.to(at_least_float32(up))


def key(matrix: str, name: str) -> str:
    """The name of a parameter: of A or B of a layer."""
    return f"{matrix}/{name.replace('.', '/')}"


class AdaptedLinear(nn.Linear):
    """A linear layer whose weight has an update; its parameters are those that it had before."""

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        base = self._parameters["weight"]
        assert base is not None
        updates, name = self.__dict__["update"]
        chance = updates.adapter.dropout if updates.training else 0.0
        return LowRank(base, *updates.pair(name), chance)


def adapt(network: Backbone, updates: LowRankUpdates) -> None:
    """Make the layers of a network use their updates, which remain outside of it. Layers that share a weight share
    its update."""
    owners = {id(network.get_submodule(name)._parameters["weight"]): name for name in updates.names}
    for layer in network.modules():
        name = owners.get(id(layer._parameters.get("weight")))
        if name is not None and isinstance(layer, nn.Linear):
            layer.__class__ = AdaptedLinear
            layer.__dict__["update"] = (updates, name)


def add_updates(weights: Mapping[str, Tensor], updates: LowRankUpdates) -> dict[str, Tensor]:
    sums = dict(weights)
    for name in updates.names:
        base = sums[f"{name}.weight"]
        sums[f"{name}.weight"] = base.to(at_least_float32(base)) + updates.update(name).to(base.device)
    return sums


def at_least_float32(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


class LowRank(Tensor):
    """base + up · down as a weight: `F.linear` multiplies with the parts, and so does what only moves or scales rows.

    Any other function gets the sum.
    """

    base: Tensor
    down: Tensor
    up: Tensor
    chance: float  # of dropout before `down`

    @staticmethod
    def __new__(cls, base: Tensor, down: Tensor, up: Tensor, chance: float = 0.0) -> "LowRank":
        made = Tensor._make_wrapper_subclass(cls, base.shape, dtype=base.dtype, device=base.device)
        made.base, made.down, made.up, made.chance = base, down, up, chance
        return made

    def __init__(self, *parts: object) -> None:
        return

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LowRank({list(self.base.shape)}, rank {len(self.down)})"

    @property
    def sum(self) -> Tensor:  # type: ignore[override]
        return self.base + (self.up @ self.down.to(self.up.dtype)).to(self.base.dtype)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x · (base + up · down)ᵀ + bias."""
        seen = F.dropout(x, self.chance) if self.chance else x
        down, up = self.down.to(seen.dtype), self.up.to(seen.dtype)
        return F.linear(x, self.base, bias) + F.linear(F.linear(seen, down), up)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is F.linear:
            x, weight, *bias = args
            return weight.linear(x, *bias, **given)
        if func in ROWS:
            own = next(one for one in args if isinstance(one, LowRank))
            base, up = (
                func(*[getattr(a, part) if a is own else a for a in args], **given) for part in ("base", "up")
            )
            if isinstance(base, Tensor):
                return LowRank(base, own.down, up, own.chance)
            return tuple(LowRank(a, own.down, b, own.chance) for a, b in zip(base, up, strict=True))
        with torch._C.DisableTorchFunctionSubclass():
            if func.__name__ == "__get__" or func in FACTS:
                return func(*args, **given)
            whole = [one.sum if isinstance(one, LowRank) else one for one in args]
            return func(*whole, **given)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        whole = [one.sum if isinstance(one, LowRank) else one for one in args]
        return func(*whole, **(kwargs or {}))


# Functions that move, choose, scale or convert rows of a matrix, and nothing else as networks use them.
ROWS = {Tensor.split, torch.split, Tensor.chunk, torch.chunk, Tensor.unflatten, Tensor.transpose, Tensor.flatten}
ROWS |= {Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.to}
FACTS = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point}
