"""OmniNet: after every few layers one that attends to the states of all of them at once. [Tay et al. 2021]

After `partition` − 1 ordinary blocks their outputs, at all positions, go together through one whole block of its own
weights (attention and MLP); the largest value of each feature over the layers is added to the stream, and a new group
begins. This is the full-attention variant. In a causal network a position sees all layers of itself and of earlier
positions: none of them depends on what comes later, and the maximum is within a position.

The authors published code for images only. For language this follows their description: causal masking, and the
position of an omni block, are ours. No layer has an embedding of its own, so the order of layers does not matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.attending import attend_in
from unmask.model.backbone import BACKBONES, Backbone, Spec, precision
from unmask.model.backbones.block import Block, BlockInputs, Norm, normalize
from unmask.model.backbones.rotary import Rotary, check_even_heads
from unmask.model.key_values import KeyValues
from unmask.model.passing import ATTENTION, Abilities, Apart, Empty, Memory, Pass, Rule, States
from unmask.registry import derived


@BACKBONES.register("omninet", "omnidirectional attention: to all positions of all layers")
@dataclass(frozen=True)
class OmniNetSpec(Spec):
    """The shape of an OmniNet."""

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(128)  # positions of a training row; rotary positions let other lengths run
    width: int = 256  # features per position
    blocks: int = 6  # ordinary layers
    heads: int = 4  # attention heads; width must be a multiple of twice their number
    partition: int = 3  # an omni block follows every partition − 1 ordinary ones
    tied: bool = True  # the head reuses the embedding
    dropout: float = 0.0  # dropout probability on both branches of a block, in training
    causal: bool = derived(False)  # a position sees only itself and what is before it

    def __post_init__(self) -> None:
        self.check_sizes("heads")
        check_even_heads(self.width, self.heads)
        if not 2 <= self.partition <= self.blocks + 1:
            raise UserError(
                f"partition must lie from 2 to {self.blocks + 1}, so that an omni block has layers to attend to and "
                f"there are enough of them; saw {self.partition} with {self.blocks} blocks."
            )

    @property
    def abilities(self) -> Abilities:
        """An omni block attends to all layers of whole rows."""
        return Abilities(ATTENTION - {Apart}, memory=self.causal)

    @property
    def omnis(self) -> int:
        """How many omni blocks there are."""
        return self.blocks // (self.partition - 1)

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        d, l, seen = self.width, length or self.length, 0.5 if self.causal else 1.0
        ordinary = 24 * d * d + 4 * l * d * seen
        many = self.partition - 1
        omni = many * (24 * d * d + 4 * many * l * d * seen)
        return self.blocks * ordinary + self.omnis * omni + rows * 2 * d * self.vocab

    @property
    def activations(self) -> float:
        """18 widths per token and block, and as many for each layer that an omni block reads."""
        return 18.0 * self.width * (self.blocks + self.omnis * (self.partition - 1))


@dataclass(frozen=True, eq=False)
class LayersRead:
    """What both kinds of block have read."""

    blocks: KeyValues
    omnis: KeyValues  # of every layer, so it holds several entries per token

    @property
    def filled(self) -> int:
        return self.blocks.filled

    def take(self, rows: Int[Tensor, " n"]) -> "LayersRead":
        return LayersRead(self.blocks.take(rows), self.omnis.take(rows))


def omninet_block(a: OmniNetSpec) -> Block:
    return Block(width=a.width, heads=a.heads, cond=0, constant=True, dropout=a.dropout)


class OmniNet(Backbone):
    """The network; position i is predicted from the state of i − 1 if it is causal, else from its own."""

    spec: OmniNetSpec
    constants = frozenset({"rotary.inv_freq"})
    stacked: Mapping[str, int] = {"qkv": 3}

    def __init__(self, spec: OmniNetSpec) -> None:
        super().__init__()
        a = self.spec = spec
        self.embedding = nn.Embedding(a.vocab, a.width)
        nn.init.normal_(self.embedding.weight, std=a.width**-0.5)
        self.rotary = Rotary(a.width // a.heads)
        self.blocks = nn.ModuleList(omninet_block(a) for _ in range(a.blocks))
        self.omnis = nn.ModuleList(omninet_block(a) for _ in range(a.omnis))
        self.norm = Norm(a.width)
        self.bias = nn.Parameter(torch.zeros(a.vocab))
        self.out = None if a.tied else nn.Linear(a.width, a.vocab, bias=False)

    @property
    def units(self) -> list[nn.Module]:
        return [*self.blocks, *self.omnis]

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        return self.embedding(tokens)

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        return self.product(hidden, self.embedding.weight if self.out is None else self.out.weight, self.bias)

    def forward(self, p: Pass) -> States:
        x = p.x if p.x.is_floating_point() else self.embed(p.x)
        many, m, turns = self.spec.partition - 1, x.shape[1], self.rotary.at(p)
        blocks, omnis = (None, None) if p.memory is None else memories(p.memory, many)
        own = attend_in(replace(p, memory=blocks))
        before = 0 if blocks is None else blocks.filled
        rule = own.whole_rule
        if rule is None:
            rule = torch.ones(m, before + m, dtype=torch.bool, device=x.device)
        rule = rule if own.real is None else rule & own.real[:, 0]  # (b|) m before + m
        # What was read is cached call by call, every layer of it; what is new comes layer after layer.
        wide = (1,) * (rule.dim() - 2)
        rule = torch.cat((rule[..., :before].repeat(*wide, 1, many), rule[..., before:].repeat(*wide, 1, many)), -1)
        rule = rule.repeat(*wide, many, 1)
        every = attend_in(Pass(x.new_zeros(len(x), many * m, 0), Rule(rule), memory=omnis))
        ordinary, omni = BlockInputs(own, turns), BlockInputs(every, turns.repeat(many, 1, 1))
        states: list[Tensor] = []
        with precision(x.device, self.compute):
            for i, block in enumerate(self.blocks):
                x = self.run_layer(block, x, ordinary, i, False)
                states.append(x)
                if len(states) == many:
                    group = i // many
                    seen = self.run_layer(self.omnis[group], torch.cat(states, 1), omni, group, False)
                    x = x + seen.unflatten(1, (many, m)).amax(1)
                    states = []
            hidden = own.states(normalize(x, self.norm.weight)).hidden
        if own.writing is None or every.writing is None:
            return States(hidden)
        return States(hidden, LayersRead(own.writing.after, every.writing.after))


def memories(memory: Memory, many: int) -> tuple[KeyValues, KeyValues]:
    """The memories of both kinds of block; an omni block reads `many` layers."""
    if isinstance(memory, LayersRead):
        return memory.blocks, memory.omnis
    capacity = memory.capacity if isinstance(memory, Empty) else 0
    return KeyValues(capacity), KeyValues(capacity * many)


OmniNetSpec.network = OmniNet
