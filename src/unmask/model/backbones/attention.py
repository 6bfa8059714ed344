"""Attention: rotary positions, attention itself, queries at some positions only, and a causal network's cache."""

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

# Order of a head's features for the rotation: pairs (first half, second half) are adjacent, so that each pair is
# one complex number and a rotation is one multiplication. `interleave` brings weights into that order.
Turns = Float[Tensor, "l half 2"]  # cosine and sine of each position and pair


class Rotary(nn.Module):
    """The rotation of position p, pair i: the angle p · 10000^(−2i/e), e features in a head."""

    def __init__(self, features: int) -> None:
        super().__init__()
        exponents = torch.arange(0, features, 2, dtype=torch.float32) / features
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", 1 / 10000**exponents)
        self._tables: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    def turns(self, length: int) -> Turns:
        """The rotations of positions 0 .. length − 1, cached for each length and device."""
        key = (length, self.inv_freq.device, self.inv_freq.dtype)
        if key not in self._tables:
            if len(self._tables) >= 16:
                self._tables.clear()
            positions = torch.arange(length, device=self.inv_freq.device, dtype=self.inv_freq.dtype)
            angles = positions[:, None] * self.inv_freq
            self._tables[key] = torch.stack((angles.cos(), angles.sin()), -1)
        return self._tables[key]

    def _apply(self, *arguments, **options):  # type: ignore[no-untyped-def]
        self._tables.clear()  # .to(device) and .double() move the frequencies
        return super()._apply(*arguments, **options)

    def _load_from_state_dict(self, *arguments, **options) -> None:  # type: ignore[no-untyped-def]
        self._tables.clear()
        super()._load_from_state_dict(*arguments, **options)


def interleave(weight: Float[Tensor, "d_out d_in"], heads: int) -> Float[Tensor, "d_out d_in"]:
    """Query or key weights with the two halves of every head's output interleaved."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def rotate(x: Float[Tensor, "*shape h e"], turns: Float[Tensor, "... half 2"]) -> Float[Tensor, "*shape h e"]:
    """Rotate each interleaved pair of features by its position's angle; `turns` (.. e/2 2) has no head axis."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 2))
    turns = turns.unsqueeze(-3)
    if not torch.compiler.is_compiling():
        turned = torch.view_as_complex(wide) * torch.view_as_complex(turns)
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)
    (a, b), (cos, sin) = wide.unbind(-1), turns.unbind(-1)  # torch.compile does not support complex numbers
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


def attend(
    q: Float[Tensor, "b m h e"],
    k: Float[Tensor, "b l h e"],
    v: Float[Tensor, "b l h e"],
    *,
    visible: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b m d"]:
    """softmax(q kᵀ/√e) v, where `visible` (broadcast to b h m l) or the causal rule allows."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=causal).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Asked:
    """Some flat positions of a batch, packed into (b most) so that they can attend as a batch of queries."""

    rows: Int[Tensor, " n"]
    batch: Int[Tensor, " n"]  # the sequence each row belongs to
    position: Int[Tensor, " n"]  # its position there
    cell: Int[Tensor, " n"]  # its index in the packed queries, flat over (b most)
    sequences: int
    most: int  # largest number of rows in one sequence

    def pack(self, q: Float[Tensor, "n h e"]) -> Float[Tensor, "b most h e"]:
        packed = q.new_zeros(self.sequences * self.most, *q.shape[1:]).index_copy(0, self.cell, q)
        return packed.unflatten(0, (self.sequences, self.most))

    def unpack(self, out: Float[Tensor, "b most d"]) -> Float[Tensor, "n d"]:
        return out.flatten(0, 1).index_select(0, self.cell)

    def own(self, values: Float[Tensor, "b l d"]) -> Float[Tensor, "n d"]:
        """The rows' entries of values given per sequence (b 1 d) or per position (b l d)."""
        if values.shape[1] == 1:
            return values[:, 0].index_select(0, self.batch)
        return values.flatten(0, 1).index_select(0, self.rows)

    def visible(self, allowed: Bool[Tensor, "l l"]) -> Bool[Tensor, "b 1 most l"]:
        """The rows of `allowed` for the packed queries; an empty cell sees everything, so that it stays finite."""
        packed = allowed.new_ones(self.sequences * self.most, allowed.shape[1])
        packed[self.cell] = allowed[self.position]
        return packed.unflatten(0, (self.sequences, 1, self.most))


def asked_rows(rows: Int[Tensor, " n"], *, sequences: int, length: int) -> Asked:
    """Assign each flat position, in any order, a cell among its sequence's queries."""
    batch = rows // length
    counts = torch.bincount(batch, minlength=sequences)
    order = batch.argsort(stable=True)
    rank = torch.empty_like(rows)
    starts = counts.cumsum(0) - counts
    rank[order] = torch.arange(len(rows), device=rows.device) - starts[batch[order]]
    most = int(counts.max())
    return Asked(rows, batch, rows % length, batch * most + rank, sequences, most)


@dataclass(frozen=True)
class Cache:
    """The KV cache of a causal network: each token is read once."""

    capacity: int
    filled: int = 0
    pairs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # per block, allocated up to capacity

    def extend(
        self, block: int, k: Float[Tensor, "b m h e"], v: Float[Tensor, "b m h e"]
    ) -> tuple[Float[Tensor, "b l h e"], Float[Tensor, "b l h e"]]:
        """Append m new keys and values to those of a block; returns all of them."""
        if block not in self.pairs:
            shape = (k.shape[0], self.capacity, *k.shape[2:])
            self.pairs[block] = (k.new_empty(shape), v.new_empty(shape))
        end = self.filled + k.shape[1]
        keys, values = self.pairs[block]
        keys[:, self.filled : end] = k
        values[:, self.filled : end] = v
        return keys[:, :end], values[:, :end]

    def advanced(self, tokens: int) -> "Cache":
        """The same cache after `tokens` more tokens."""
        return replace(self, filled=self.filled + tokens)

    def take(self, rows: Int[Tensor, " n"]) -> "Cache":
        """The cache of some rows."""
        return replace(self, pairs={block: (k[rows], v[rows]) for block, (k, v) in self.pairs.items()})
