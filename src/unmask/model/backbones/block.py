"""A block of the transformer: attention, then an MLP, both pre-norm with residual connections."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.model.attending import Attending
from unmask.model.backbones.rotary import Turns, interleave, rotate
from unmask.model.linear import linear

ROWS = 1024  # rows per slice of the MLP in inference


class Norm(nn.Module):
    """Layer norm with a weight and no bias, always computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


def modulation(parts: int, cond: int, width: int) -> nn.Linear | None:
    """The layer that maps the noise level to `parts` vectors, initialised to zero."""
    if not cond:
        return None
    layer = nn.Linear(cond, parts * width)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def normalize(
    x: Float[Tensor, "*shape d"],
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"] | None = None,
    shift: Float[Tensor, "... d"] | None = None,
    scale: Float[Tensor, "... d"] | None = None,
) -> Float[Tensor, "*shape d"]:
    """Layer norm, then (1 + scale) · x + shift if each row has its own modulation."""
    # Under autocast a bias that a product has made is a small float; on a CPU the norm takes one type.
    y = F.layer_norm(x, x.shape[-1:], weight, None if bias is None else bias.to(weight.dtype))
    return y if shift is None or scale is None else torch.addcmul(shift, y, 1 + scale)


def add_branch(x: Float[Tensor, "*shape d"], branch: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
    """x + branch, in the branch's memory if both have the same type (under bf16 autocast x stays float32)."""
    return branch.add_(x) if branch.dtype == x.dtype else x + branch


def drop_some(y: Float[Tensor, "*shape d"], chance: float) -> Float[Tensor, "*shape d"]:
    """Dropout. On a CPU random numbers are slow, so four decisions of 16 bits share one number."""
    if y.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(y, chance)
    words = torch.empty(-(-y.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    cut = round(chance * 2**16)
    keep = words.view(torch.int16)[: y.numel()].view(y.shape) >= cut - 2**15
    return torch.where(keep, y, 0.0) * (2**16 / (2**16 - cut))


@dataclass(frozen=True, eq=False)
class BlockInputs:
    """What a block needs to know of a pass besides its states."""

    attending: Attending
    turns: Turns  # rotations of the elements
    c: Float[Tensor, "..."] | None = None  # the noise level as vectors: of each row, of each element, or (1 c)
    aimed: Turns | None = None  # rotations of the queries, where they are others

    def modulated(self, layer: nn.Linear, parts: int) -> list[Tensor]:
        """The vectors that modulate the elements, (b 1 d) or (b m d), where rows or elements differ in noise."""
        assert self.c is not None
        if self.c.dim() == 2 and self.attending.parts:
            return list(layer(self.c)[self.attending.owner][None].chunk(parts, dim=-1))
        return list(layer(self.c if self.c.dim() == 3 else self.c[:, None]).chunk(parts, dim=-1))

    def own(self, values: Float[Tensor, "b _ d"]) -> Float[Tensor, "n d"]:
        """The asked elements' entries of such vectors."""
        rows = self.attending.rows
        if values.shape[1] == 1:
            return values[:, 0].index_select(0, rows // self.attending.m)
        return values.flatten(0, 1).index_select(0, rows)


@dataclass(frozen=True)
class Ready:
    """The weights of a block, arranged for the forward pass."""

    norm1: Float[Tensor, " d"]
    bias1: Float[Tensor, " d"] | None
    qk: Float[Tensor, "dd d"]  # rows interleaved for the rotation
    v: Float[Tensor, "d d"]
    out: Float[Tensor, "d d"]
    norm2: Float[Tensor, " d"]
    bias2: Float[Tensor, " d"] | None
    up: Float[Tensor, "u d"]
    up_bias: Float[Tensor, " u"]
    down: Float[Tensor, "d u"]
    down_bias: Float[Tensor, " d"]


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a linear layer, with what the adapters of peft around it add."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if isinstance(layer, nn.Linear) or getattr(layer, "merged", False) or getattr(layer, "disable_adapters", False):
        return weight
    for name in getattr(layer, "active_adapters", ()):
        weight = weight + layer.get_delta_weight(name)  # type: ignore[operator]
    return weight


class Block(nn.Module):
    """Attention, then an MLP, both pre-norm with residual connections."""

    def __init__(self, *, width: int, heads: int, cond: int, constant: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.constant = constant  # the modulation is the same for all sequences
        self.norm1 = Norm(width)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.norm2 = Norm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.adaLN_modulation = modulation(6, cond, width)
        self.keep = False  # frozen: arrange the weights once, not in every forward pass
        self.inputs_ready: Ready | None = None

    def weights(self, c: Float[Tensor, "..."] | None) -> Ready:
        """The weights of this pass: those kept by `freeze`, or arranged anew while they can still change."""
        if not self.keep or self.norm1.weight.requires_grad:
            return self.ready(c)
        if self.inputs_ready is None:
            with torch.no_grad():
                self.inputs_ready = self.ready(c)
        return self.inputs_ready

    def ready(self, c: Float[Tensor, "..."] | None) -> Ready:
        """The weights, with a constant modulation multiplied in."""
        d = self.attn_out.weight.shape[0]
        norm1, norm2 = self.norm1.weight, self.norm2.weight
        out, up, down = weight_of(self.attn_out), weight_of(self.mlp[0]), weight_of(self.mlp[2])
        up_bias, down_bias = self.mlp[0].bias, self.mlp[2].bias
        assert isinstance(up_bias, Tensor)
        assert isinstance(down_bias, Tensor)
        bias1 = bias2 = None
        if self.adaLN_modulation is not None and self.constant:
            bias1, scale1, gate1, bias2, scale2, gate2 = self.adaLN_modulation(c).view(6, d).unbind(0)
            norm1, norm2 = norm1 * (1 + scale1), norm2 * (1 + scale2)
            out, down, down_bias = gate1[:, None] * out, gate2[:, None] * down, gate2 * down_bias
        qk, v = weight_of(self.attn_qkv).split((2 * d, d))
        qk = interleave(qk, 2 * self.heads)
        return Ready(norm1, bias1, qk, v, out, norm2, bias2, up, up_bias, down, down_bias)

    def forward(
        self, x: Float[Tensor, "b l d"], reading: BlockInputs, index: int, last: bool
    ) -> Float[Tensor, "b l d"] | Float[Tensor, "n d"]:
        """`last`: only the asked elements are needed."""
        w, asked = self.weights(reading.c), last and reading.attending.wanted is not None
        m: list[Tensor | None] = [None] * 6
        if self.adaLN_modulation is not None and not self.constant:
            m = [*reading.modulated(self.adaLN_modulation, 6)]
        h = normalize(x, w.norm1, w.bias1, m[0], m[1])
        if asked:
            o = self.asked_attend(h, w, reading, index)
            x = x.flatten(0, 1).index_select(0, reading.attending.rows)
            m = [None if part is None else reading.own(part) for part in m]
        else:
            o = self.all_attend(h, w, reading, index)
        x = add_branch(x, self.branch(linear(o, w.out), m[2]))
        if torch.is_grad_enabled() or m[3] is not None or x.shape[:-1].numel() <= ROWS:
            return self.widen(x, w, m)
        # A few rows at a time: the values between the two products then stay in the processor's cache.
        return torch.cat([self.widen(part, w, m) for part in x.flatten(0, -2).split(ROWS)]).view(x.shape)

    def widen(self, x: Float[Tensor, "*shape d"], w: Ready, m: list[Tensor | None]) -> Float[Tensor, "*shape d"]:
        """The MLP, added to its input."""
        h = linear(normalize(x, w.norm2, w.bias2, m[3], m[4]), w.up, w.up_bias)
        return add_branch(x, self.branch(linear(F.gelu(h, approximate="tanh"), w.down, w.down_bias), m[5]))

    def _apply(self, *arguments, **options):  # type: ignore[no-untyped-def]
        self.inputs_ready = None  # .to(device) and .double() replace the weights
        return super()._apply(*arguments, **options)

    def branch(self, y: Float[Tensor, "*shape d"], gate: Tensor | None) -> Float[Tensor, "*shape d"]:
        if self.training and self.dropout:
            y = drop_some(y, self.dropout)
        return y if gate is None else y * gate

    def all_attend(
        self, h: Float[Tensor, "b l d"], w: Ready, reading: BlockInputs, index: int
    ) -> Float[Tensor, "b l d"]:
        qk = linear(h, w.qk).unflatten(-1, (2 * self.heads, -1))
        if reading.aimed is None:
            q, k = rotate(qk, reading.turns).chunk(2, dim=2)
        else:
            q, k = qk.chunk(2, dim=2)
            q, k = rotate(q, reading.aimed), rotate(k, reading.turns)
        v = linear(h, w.v).unflatten(-1, (self.heads, -1))
        return reading.attending(index, q, k, v)

    def asked_attend(
        self, h: Float[Tensor, "b l d"], w: Ready, reading: BlockInputs, index: int
    ) -> Float[Tensor, "n d"]:
        """Attention with keys and values of all elements and queries of the asked ones."""
        attending, turns = reading.attending, reading.turns
        w_q, w_k = w.qk.chunk(2)
        k = rotate(linear(h, w_k).unflatten(-1, (self.heads, -1)), turns)
        v = linear(h, w.v).unflatten(-1, (self.heads, -1))
        q = linear(h.flatten(0, 1).index_select(0, attending.rows), w_q).unflatten(-1, (self.heads, -1))
        turns = turns if reading.aimed is None else reading.aimed
        turns = turns.flatten(0, 1)[attending.rows] if turns.dim() == 4 else turns[attending.rows % attending.m]
        return attending.asked(index, rotate(q, turns), k, v)
