"""Decoder: the pre-norm transformer of Llama, SmolLM2, Qwen2, Qwen3 and GPT-2; fields of its spec say which.

Direction comes with the pass, so the same weights are autoregressive, see both sides, or go block by block. Weights
may stay in the type of their file: a bfloat16 matrix is widened for its product and dropped again, so that a network
needs little more memory than its file, also where products in bfloat16 are not safe. Parameters have Llama's names.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.attending import Attending, attend_in
from unmask.model.backbone import BACKBONES, Backbone, Spec, precision
from unmask.model.backbones.block import drop_some
from unmask.model.backbones.layers import check_reach, fresh, in_heads
from unmask.model.backbones.rotary import THETA, Turns, frequencies, rotate, turns_at
from unmask.model.backbones.state_space import RMSNorm
from unmask.model.passing import ATTENTION, Abilities, Pass, States
from unmask.registry import derived

BIASES = {"none": 0, "qkv": 1, "attention": 2, "all": 3}  # each has those of the ones before it
WIDENED = 1 << 24  # numbers of the head that are widened at a time
Turning = tuple[Turns, Turns]  # rotations of keys, and of queries


@BACKBONES.register("decoder", "Llama, SmolLM2, Qwen2, Qwen3 or GPT-2, in any direction")
@dataclass(frozen=True)
class DecoderSpec(Spec):
    """The shape of a decoder."""

    warms: ClassVar[bool] = True

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(128)  # positions of a training row; rotary positions let other lengths run
    width: int = 256  # features per position
    blocks: int = 6  # layers
    heads: int = 4  # attention heads
    shared: int = 0  # heads of keys and values, each shared by several heads of queries; 0: as many as heads
    features: int = 0  # features per head, an even number; 0: width / heads
    inner: int = 0  # features inside the MLP; 0: 8/3 of the width, or four times it if the MLP is not gated
    gated: bool = True  # the MLP is silu(gate) · up; false: GELU, approximated by tanh
    norm: Literal["rms", "layer"] = "rms"  # layer: with mean and bias, as in GPT-2
    head_norm: bool = False  # queries and keys are normed in each head, as in Qwen3
    bias: Literal["none", "qkv", "attention", "all"] = "none"  # which products have a bias; Qwen2: qkv; GPT-2: all
    positions: int = 0  # rows of a table of learned positions, the longest text; 0: rotary positions
    theta: float = THETA  # base of the rotary positions
    rotated: int = 0  # features of a head that rotate; 0: all
    scaling: tuple[float, ...] = ()  # Llama 3's angles: factor, low, high, first length; empty: as they are
    eps: float = 1e-6  # added to the variance in norms
    dropout: float = 0.0  # dropout probability on both branches of a layer, in training
    tied: bool = True  # the head reuses the embedding
    outputs: int = 0  # ids that can be predicted, the first ones; 0: all
    causal: bool = derived(False)  # a position sees only itself and what is before it
    reads_before: bool = False  # predict position i from the hidden state of i − 1; always true if causal

    def __post_init__(self) -> None:
        self.check_sizes("heads")
        for name in ("shared", "features", "inner", "positions", "rotated", "outputs"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must be 0 or more, not {getattr(self, name)}.")
        if not self.features and self.width % (2 * self.heads):
            raise UserError(
                f"width {self.width} cannot be split into {self.heads} heads with an even number of features: make "
                f"it a multiple of {2 * self.heads}, change heads, or set features."
            )
        if self.heads % self.pairs or self.each % 2 or self.turned % 2 or self.turned > self.each:
            raise UserError(
                f"heads must be a multiple of shared, and features and rotated even, the second at most the first; "
                f"saw {self.heads}, {self.pairs}, {self.each} and {self.turned}."
            )
        if self.theta <= 0:
            raise UserError(f"theta must be above 0; saw {self.theta}.")
        if self.scaling and (len(self.scaling) != 4 or min(self.scaling) <= 0 or self.scaling[1] >= self.scaling[2]):
            raise UserError(f"scaling is factor, low, high and first length, low below high; saw {self.scaling}.")
        if self.positions and self.length > self.positions:
            raise UserError(
                f"the network has {self.positions} positions, and a row has {self.length}: shorten the rows "
                f"(--length {self.positions})."
            )

    @property
    def pairs(self) -> int:
        """Heads of keys and values."""
        return self.shared or self.heads

    @property
    def each(self) -> int:
        """Features of a head."""
        return self.features or self.width // self.heads

    @property
    def turned(self) -> int:
        """Features of a head that rotate."""
        return 0 if self.positions else self.rotated or self.each

    @property
    def hidden(self) -> int:
        usual = 16 * math.ceil(self.width / 6) if self.gated else 4 * self.width
        return self.inner or usual

    @property
    def abilities(self) -> Abilities:
        return Abilities(ATTENTION, memory=True, positions=True, aims=not self.positions)

    @property
    def before(self) -> bool:
        return self.reads_before

    @property
    def limit(self) -> int | None:
        return self.positions or None

    def sized(self, *, vocab: int, length: int, causal: bool) -> "DecoderSpec":
        """With the sizes of the data. A network that has predicted position i at i − 1 continues to do so."""
        return replace(self, vocab=vocab, length=length, causal=causal, reads_before=causal or self.reads_before)

    def from_autoregressive(self) -> "DecoderSpec":
        return replace(self, reads_before=True)

    def in_place(self) -> "DecoderSpec":
        return replace(self, reads_before=False)

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        """The last layer computes keys and values at all positions, the rest only at the rows."""
        d, l, seen = self.width, length or self.length, 0.5 if self.causal else 1.0
        pairs = 4 * d * self.pairs * self.each
        rest = 4 * d * self.heads * self.each + 4 * l * self.heads * self.each * seen
        rest += (6 if self.gated else 4) * d * self.hidden
        return self.blocks * pairs + (self.blocks - 1 + rows) * rest + rows * 2 * d * self.vocab

    @property
    def activations(self) -> float:
        heads = (4 * self.heads + 3 * self.pairs) * self.each
        return self.blocks * (4 * self.width + heads + (4 if self.gated else 2) * self.hidden)


def widen(weight: Tensor, x: Tensor) -> Tensor:
    """A stored tensor in the type of the numbers it is combined with; autocast chooses the type itself."""
    return weight if torch.is_autocast_enabled(x.device.type) else weight.to(x.dtype)


def product(layer: nn.Module, x: Float[Tensor, "*shape i"]) -> Float[Tensor, "*shape o"]:
    if not isinstance(layer, nn.Linear):  # an adapter of peft around one
        result: Tensor = layer(x)
        return result
    bias = None if layer.bias is None else widen(layer.bias, x)
    return F.linear(x, widen(layer.weight, x), bias)


class WideLayerNorm(nn.Module):
    """Layer norm with a weight and a bias, in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.layer_norm(wide, wide.shape[-1:], self.weight.to(wide.dtype), self.bias.to(wide.dtype), self.eps)


NORMS: dict[str, type[nn.Module]] = {"rms": RMSNorm, "layer": WideLayerNorm}


class DecoderAttention(nn.Module):
    """The products around attention."""

    def __init__(self, a: DecoderSpec) -> None:
        super().__init__()
        self.spec, d, biases = a, a.width, BIASES[a.bias]
        own, pairs = a.heads * a.each, a.pairs * a.each
        self.q_proj = nn.Linear(d, own, bias=biases > 0)
        self.k_proj = nn.Linear(d, pairs, bias=biases > 0)
        self.v_proj = nn.Linear(d, pairs, bias=biases > 0)
        self.o_proj = nn.Linear(own, d, bias=biases > 1)
        self.q_norm = NORMS[a.norm](a.each, a.eps) if a.head_norm else nn.Identity()
        self.k_norm = NORMS[a.norm](a.each, a.eps) if a.head_norm else nn.Identity()

    def queries(self, h: Float[Tensor, "*shape d"], turns: Turns | None) -> Float[Tensor, "*shape h e"]:
        q = self.q_norm(in_heads(product(self.q_proj, h), self.spec.heads))
        return q if turns is None else rotate(q, turns, halves=True)

    def forward(
        self, h: Float[Tensor, "b l d"], index: int, attending: Attending, turns: Turning | None, asked: bool
    ) -> Float[Tensor, "..."]:
        """`asked`: at the wanted elements only."""
        own, aimed = turns or (None, None)
        k, v = (in_heads(product(layer, h), self.spec.pairs) for layer in (self.k_proj, self.v_proj))
        k = self.k_norm(k)
        k = (k if own is None else rotate(k, own, halves=True)).to(v.dtype)
        if not asked:
            return product(self.o_proj, attending(index, self.queries(h, aimed).to(v.dtype), k, v))
        rows = attending.rows
        if aimed is not None:
            aimed = aimed.flatten(0, 1)[rows] if aimed.dim() == 4 else aimed[rows % attending.m]
        q = self.queries(h.flatten(0, 1).index_select(0, rows), aimed).to(v.dtype)
        return product(self.o_proj, attending.asked(index, q, k, v))


class Mlp(nn.Module):
    """silu(gate) · up, then down; or GELU between two products."""

    def __init__(self, a: DecoderSpec) -> None:
        super().__init__()
        bias = BIASES[a.bias] > 2
        self.gate_proj = nn.Linear(a.width, a.hidden, bias=bias) if a.gated else None
        self.up_proj = nn.Linear(a.width, a.hidden, bias=bias)
        self.down_proj = nn.Linear(a.hidden, a.width, bias=bias)

    def forward(self, h: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
        up = product(self.up_proj, h)
        if self.gate_proj is None:
            return product(self.down_proj, F.gelu(up, approximate="tanh"))
        return product(self.down_proj, F.silu(product(self.gate_proj, h)) * up)


class DecoderLayer(nn.Module):
    """Attention, then an MLP, both pre-norm with residual connections."""

    def __init__(self, a: DecoderSpec) -> None:
        super().__init__()
        self.spec = a
        self.input_layernorm = NORMS[a.norm](a.width, a.eps)
        self.self_attn = DecoderAttention(a)
        self.post_attention_layernorm = NORMS[a.norm](a.width, a.eps)
        self.mlp = Mlp(a)

    def forward(
        self, x: Float[Tensor, "b l d"], index: int, attending: Attending, turns: Turning | None
    ) -> Float[Tensor, "b l d"] | Float[Tensor, "n d"]:
        """In the last layer only the wanted elements are needed."""
        asked = index == self.spec.blocks - 1 and attending.wanted is not None
        chance = self.spec.dropout if self.training else 0.0
        y = self.self_attn(self.input_layernorm(x), index, attending, turns, asked)
        x = x.flatten(0, 1).index_select(0, attending.rows) if asked else x
        x = x + (drop_some(y, chance) if chance else y)
        y = self.mlp(self.post_attention_layernorm(x))
        return x + (drop_some(y, chance) if chance else y)


class Decoder(Backbone):
    """The network."""

    spec: DecoderSpec
    stores: ClassVar[bool] = True

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        a = self.spec = spec
        self.embed_tokens = nn.Embedding(a.vocab, a.width)
        self.embed_positions = nn.Embedding(a.positions, a.width) if a.positions else None
        self.layers = nn.ModuleList(DecoderLayer(a) for _ in range(a.blocks))
        self.norm = NORMS[a.norm](a.width, a.eps)
        self.lm_head = None if a.tied else nn.Linear(a.width, a.vocab, bias=False)
        fresh(self)

    @property
    def copies(self) -> dict[str, str]:
        return {"lm_head.weight": "embed_tokens.weight"} if self.spec.tied else {}

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        vectors = self.embed_tokens(tokens)
        return vectors.to(torch.promote_types(vectors.dtype, torch.float32))

    def angles(self, device: torch.device) -> Float[Tensor, " half"]:
        angles = frequencies(self.spec.turned, self.spec.theta, device)
        return scale_angles(angles, *self.spec.scaling) if self.spec.scaling else angles

    def forward(self, p: Pass) -> States:
        check_reach(p, self.spec.limit, self.spec.name)
        attending, turns = attend_in(p), None
        x = p.x if p.x.is_floating_point() else self.embed(p.x)
        if self.embed_positions is None:
            own = turns_at(attending.position, self.angles(x.device))
            turns = own, own if p.aim is None else turns_at(p.aim, self.angles(x.device))
        else:
            x = x + self.embed_positions(attending.position).to(x.dtype)
        with precision(x.device, self.compute):
            for i, layer in enumerate(self.layers):
                x = self.run_layer(layer, x, i, attending, turns)
            return attending.states(self.norm(x))

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        weight = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        known = self.spec.outputs or self.spec.vocab
        weight, unknown = weight[:known], self.spec.vocab - known
        with precision(hidden.device, self.compute):
            if weight.dtype == hidden.dtype or torch.is_autocast_enabled(hidden.device.type):
                logits = F.linear(hidden, weight)
            else:  # some ids at a time: the head of a large vocabulary would double the memory
                some = weight.split(max(1, WIDENED // weight.shape[1]))
                logits = torch.cat([F.linear(hidden, part.to(hidden.dtype)) for part in some], -1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.pad(logits, (0, unknown), value=-torch.inf) if unknown > 0 else logits


def scale_angles(
    angles: Float[Tensor, " half"], factor: float, low: float, high: float, length: float
) -> Float[Tensor, " half"]:
    """Llama 3: angles that turn less than `low` times in `length` positions are divided by the factor, those that
    turn more than `high` times stay, and between them it goes over evenly."""
    turns = length * angles / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return angles * (share + (1 - share) / factor)


DecoderSpec.network = Decoder
