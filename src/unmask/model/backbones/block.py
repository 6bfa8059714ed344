"""A block of the transformer: attention, then an MLP, both pre-norm with residual connections."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from unmask.model.backbones.attention import Asked, Cache, Turns, attend, interleave, rotate
from unmask.model.backbones.row_cache import Glance

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


def normed(
    x: Float[Tensor, "*shape d"],
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"] | None = None,
    shift: Float[Tensor, "... d"] | None = None,
    scale: Float[Tensor, "... d"] | None = None,
) -> Float[Tensor, "*shape d"]:
    """Layer norm, then (1 + scale) · x + shift if each row has its own modulation."""
    y = F.layer_norm(x, x.shape[-1:], weight, bias)
    return y if shift is None or scale is None else torch.addcmul(shift, y, 1 + scale)


def add(x: Float[Tensor, "*shape d"], branch: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
    """x + branch, in the branch's memory if both have the same type (under bf16 autocast x stays float32)."""
    return branch.add_(x) if branch.dtype == x.dtype else x + branch


def dropped(y: Float[Tensor, "*shape d"], chance: float) -> Float[Tensor, "*shape d"]:
    """Dropout. On a CPU random numbers are slow, so four decisions of 16 bits share one number."""
    if y.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(y, chance)
    words = torch.empty(-(-y.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    cut = round(chance * 2**16)
    keep = words.view(torch.int16)[: y.numel()].view(y.shape) >= cut - 2**15
    return torch.where(keep, y, 0.0) * (2**16 / (2**16 - cut))


@dataclass(frozen=True)
class Sight:
    """What each position may attend to in one forward pass."""

    turns: Turns  # rotations of the positions in this pass
    visible: Bool[Tensor, "..."] | None = None  # attention mask, broadcast over (b h l l); None: all, or causal
    causal: bool = False
    asked: Asked | None = None  # the last block computes these rows only
    asked_visible: Bool[Tensor, "..."] | None = None  # the same as `visible` for the asked rows
    cache: Cache | None = None
    glances: tuple[Glance, ...] = ()  # pieces of rows, whose elements are one long row here
    stored: list[list[tuple[Tensor, Tensor]]] = field(default_factory=list)  # of each piece, by layer


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
        self.kept: Ready | None = None

    def weights(self, c: Float[Tensor, "..."] | None) -> Ready:
        """The weights of this pass: those kept by `freeze`, or arranged anew while they can still change."""
        if not self.keep or self.norm1.weight.requires_grad:
            return self.ready(c)
        if self.kept is None:
            with torch.no_grad():
                self.kept = self.ready(c)
        return self.kept

    def ready(self, c: Float[Tensor, "..."] | None) -> Ready:
        """The weights, with a constant modulation multiplied in."""
        d = self.attn_out.weight.shape[0]
        norm1, norm2 = self.norm1.weight, self.norm2.weight
        out = self.attn_out.weight
        up, up_bias, down, down_bias = self.mlp.parameters()
        bias1 = bias2 = None
        if self.adaLN_modulation is not None and self.constant:
            bias1, scale1, gate1, bias2, scale2, gate2 = self.adaLN_modulation(c).view(6, d).unbind(0)
            norm1, norm2 = norm1 * (1 + scale1), norm2 * (1 + scale2)
            out, down, down_bias = gate1[:, None] * out, gate2[:, None] * down, gate2 * down_bias
        qk, v = self.attn_qkv.weight.split((2 * d, d))
        qk = interleave(qk, 2 * self.heads)
        return Ready(norm1, bias1, qk, v, out, norm2, bias2, up, up_bias, down, down_bias)

    def forward(
        self, x: Float[Tensor, "b l d"], c: Float[Tensor, "..."] | None, sight: Sight, index: int, last: bool
    ) -> Float[Tensor, "b l d"] | Float[Tensor, "n d"]:
        w = self.weights(c)
        m: list[Tensor | None] = [None] * 6
        if self.adaLN_modulation is not None and not self.constant:
            assert c is not None
            # Six of (b 1 d), or of (b l d) if every position has its own noise level.
            m = list(self.adaLN_modulation(c if c.dim() == 3 else c[:, None]).chunk(6, dim=-1))
        h = normed(x, w.norm1, w.bias1, m[0], m[1])
        asked = sight.asked if last else None
        if sight.glances:
            o = self.each_attend(h, w, sight, index, asked)
        elif asked is None:
            o = self.all_attend(h, w, sight, index)
        else:
            o = self.asked_attend(h, w, sight, asked)
        if asked is not None:
            x = x.flatten(0, 1).index_select(0, asked.rows)
            m = [None if part is None else asked.own(part) for part in m]
        x = add(x, self.branch(F.linear(o, w.out), m[2]))
        if torch.is_grad_enabled() or m[3] is not None:
            return self.widen(x, w, m)
        # A few rows at a time: the values between the two products then stay in the processor's cache.
        parts = [self.widen(part, w, m) for part in x.flatten(0, -2).split(ROWS)]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).view(x.shape)

    def widen(self, x: Float[Tensor, "*shape d"], w: Ready, m: list[Tensor | None]) -> Float[Tensor, "*shape d"]:
        """The MLP, added to its input."""
        h = F.linear(normed(x, w.norm2, w.bias2, m[3], m[4]), w.up, w.up_bias)
        return add(x, self.branch(F.linear(F.gelu(h, approximate="tanh"), w.down, w.down_bias), m[5]))

    def _apply(self, *arguments, **options):  # type: ignore[no-untyped-def]
        self.kept = None  # .to(device) and .double() replace the weights
        return super()._apply(*arguments, **options)

    def branch(self, y: Float[Tensor, "*shape d"], gate: Tensor | None) -> Float[Tensor, "*shape d"]:
        if self.training and self.dropout:
            y = dropped(y, self.dropout)
        return y if gate is None else y * gate

    def all_attend(self, h: Float[Tensor, "b l d"], w: Ready, sight: Sight, index: int) -> Tensor:
        qk = rotate(F.linear(h, w.qk).unflatten(-1, (2 * self.heads, -1)), sight.turns)
        q, k = qk.chunk(2, dim=2)
        v = F.linear(h, w.v).unflatten(-1, (self.heads, -1))
        if sight.cache is not None:
            k, v = sight.cache.extend(index, k, v)
        return attend(q, k, v, visible=sight.visible, causal=sight.causal)

    def each_attend(
        self, h: Float[Tensor, "1 l d"], w: Ready, sight: Sight, index: int, asked: Asked | None
    ) -> Tensor:
        """Attention of each piece with its own cache; the products with the weights are shared."""
        qk = rotate(F.linear(h, w.qk).unflatten(-1, (2 * self.heads, -1)), sight.turns)
        q, k = qk[0].chunk(2, dim=1)
        v = F.linear(h, w.v).unflatten(-1, (self.heads, -1))[0]
        found = []
        for one, stored in zip(sight.glances, sight.stored, strict=True):
            own = slice(one.at, one.at + one.elements)
            keys, values, pair = one.extended(index, k[own], v[own])
            stored.append(pair)
            found.append(attend(q[None, own], keys[None], values[None], visible=one.visible))
        o = torch.cat(found, 1)
        return o if asked is None else o.flatten(0, 1).index_select(0, asked.rows)

    def asked_attend(self, h: Float[Tensor, "b l d"], w: Ready, sight: Sight, asked: Asked) -> Tensor:
        """Attention with keys and values of all positions and queries of the asked ones."""
        w_q, w_k = w.qk.chunk(2)
        k = rotate(F.linear(h, w_k).unflatten(-1, (self.heads, -1)), sight.turns)
        v = F.linear(h, w.v).unflatten(-1, (self.heads, -1))
        q = F.linear(h.flatten(0, 1).index_select(0, asked.rows), w_q).unflatten(-1, (self.heads, -1))
        q = rotate(q, sight.turns[asked.position])
        return asked.unpack(attend(asked.pack(q), k, v, visible=sight.asked_visible))
