"""Attending: how the elements of a pass attend to each other and to what is remembered, for any attention network.

A network makes one `Attending` per pass, gives it queries, keys and values of every layer, and gets the values back:

    attending = attend_in(p)
    for i, layer in enumerate(layers):
        x = x + out(attending(i, q, k, v))
    return attending.states(x)

Who sees whom, padding, memory, joined passes and wanted elements are then taken care of.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.model.key_values import KeyValues, Writing
from unmask.model.passing import Apart, Causal, Memories, Pass, States, VisibleKeys, Within
from unmask.model.rules import both_rules, forward_rule, rule_of, visible_keys
from unmask.model.short_attention import short_attention, suits


@dataclass(frozen=True, eq=False)
class Asked:
    """Some flat elements of a batch, packed into (b most) so that they can attend as a batch of queries."""

    rows: Int[Tensor, " n"]
    batch: Int[Tensor, " n"]  # the sequence each row belongs to
    position: Int[Tensor, " n"]  # its place there
    cell: Int[Tensor, " n"]  # its index in the packed queries, flat over (b most)
    sequences: int
    most: int  # largest number of rows in one sequence

    def pack(self, q: Float[Tensor, "n h e"]) -> Float[Tensor, "b most h e"]:
        packed = q.new_zeros(self.sequences * self.most, *q.shape[1:]).index_copy(0, self.cell, q)
        return packed.unflatten(0, (self.sequences, self.most))

    def unpack(self, out: Float[Tensor, "b most d"]) -> Float[Tensor, "n d"]:
        return out.flatten(0, 1).index_select(0, self.cell)

    def visible(self, allowed: Bool[Tensor, "*_ l keys"]) -> Bool[Tensor, "b 1 most keys"]:
        """The rows of `allowed` for the packed queries; an empty cell sees everything, so that it stays finite."""
        packed = allowed.new_ones(self.sequences * self.most, allowed.shape[-1])
        if allowed.dim() == 2:
            packed[self.cell] = allowed[self.position]
        else:
            packed[self.cell] = allowed.expand(self.sequences, -1, -1)[self.batch, self.position]
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


@dataclass(frozen=True, eq=False)
class Attending:
    """The attention of one pass."""

    p: Pass
    b: int
    m: int
    rule: Bool[Tensor, "*_ m keys"] | None  # who sees whom; None: all, or causal
    causal: bool  # by the order of the elements, with nothing before them
    real: Bool[Tensor, "b 1 1 m"] | None  # which elements are no padding; None: all
    writing: Writing | None
    visible: Bool[Tensor, "..."] | None = None  # rule and padding, broadcast over (b h m keys)
    packed: Asked | None = None  # the wanted elements of several rows
    packed_visible: Bool[Tensor, "..."] | None = None  # rule and padding for the wanted elements
    parts: tuple["Attending", ...] = ()  # of the passes that were joined

    @property
    def position(self) -> Int[Tensor, "*b m"]:
        return self.p.positions

    @property
    def wanted(self) -> Int[Tensor, " n"] | None:
        return self.p.wanted

    def __call__(
        self,
        layer: int,
        q: Float[Tensor, "b m h e"],
        k: Float[Tensor, "b m g e"],
        v: Float[Tensor, "b m g e"],
        *,
        dropout: float = 0.0,
        bias: Float[Tensor, "1 h m m"] | None = None,
    ) -> Float[Tensor, "b m d"]:
        """softmax(q kᵀ/√e + bias) v of a layer, at all elements. A bias is for passes without a memory."""
        if self.parts:
            return self.each(layer, q[0], k[0], v[0], whole=True)[None]
        if self.writing is not None:
            k, v = self.writing.add(layer, k, v)
        visible: Tensor | None = self.visible
        if bias is not None:
            visible = (bias if visible is None else bias.masked_fill(~visible, -torch.inf)).to(q.dtype)
        return attend(q, k, v, visible=visible, causal=self.causal, dropout=dropout)

    def asked(
        self,
        layer: int,
        q: Float[Tensor, "n h e"],
        k: Float[Tensor, "b m g e"],
        v: Float[Tensor, "b m g e"],
    ) -> Float[Tensor, "n d"]:
        """The same, with queries of the wanted elements alone: enough in the last layer."""
        if self.parts:
            return self.each(layer, q, k[0], v[0], whole=False)
        if self.writing is not None:
            k, v = self.writing.add(layer, k, v)
        if self.wanted is None:
            every = q.unflatten(0, (self.b, self.m))
            return attend(every, k, v, visible=self.visible, causal=self.causal).flatten(0, 1)
        if self.packed is None:
            return attend(q[None], k, v, visible=self.packed_visible)[0]
        return self.packed.unpack(attend(self.packed.pack(q), k, v, visible=self.packed_visible))

    def each(
        self,
        layer: int,
        q: Float[Tensor, "n h e"],
        k: Float[Tensor, "s g e"],
        v: Float[Tensor, "s g e"],
        *,
        whole: bool,
    ) -> Float[Tensor, "n d"]:
        """The attention of each of the joined passes, with queries of all elements or of the wanted ones."""
        values_of_parts, sizes = [], [part.b * part.m for part in self.parts]
        queries = q.split(sizes if whole else [len(part.rows) for part in self.parts])
        for part, own, keys, values in zip(self.parts, queries, k.split(sizes), v.split(sizes), strict=True):
            shape = (part.b, part.m, *k.shape[1:])
            keys, values = keys.view(shape), values.view(shape)
            if whole:
                own = own.view(part.b, part.m, *q.shape[1:])
                values_of_parts.append(part(layer, own, keys, values).flatten(0, 1))
            else:
                values_of_parts.append(part.asked(layer, own, keys, values))
        return torch.cat(values_of_parts)

    @property
    def rows(self) -> Int[Tensor, " n"]:
        """The flat elements that are wanted."""
        return torch.arange(self.b * self.m, device=self.p.x.device) if self.wanted is None else self.wanted

    @property
    def whole_rule(self) -> Bool[Tensor, "*_ m keys"] | None:
        """Who sees whom, also where the kernel knows it."""
        return forward_rule(self.m, self.p.x.device) if self.causal else self.rule

    def states(self, hidden: Float[Tensor, "..."]) -> States:
        """The answer of a pass: states of all its elements, or of the wanted ones; and its memory."""
        if self.wanted is not None and hidden.dim() == 3:
            hidden = hidden.flatten(0, 1).index_select(0, self.wanted)
        return States(hidden, self.memory)

    def near(self, n: int) -> "Attending":
        """The same for a layer in which an element sees no further than `n` positions."""
        parts = tuple(part.near(n) for part in self.parts)
        if parts:
            return replace(self, parts=parts)
        rule = both_rules(self.whole_rule, rule_of(Within(n), self.p, self.writing))
        return attending_of(self.p, rule, self.real, self.writing, causal=False)

    @property
    def memory(self) -> KeyValues | Memories | None:
        if self.parts and any(part.writing is not None for part in self.parts):
            return Memories(tuple(part.memory for part in self.parts))
        return None if self.writing is None else self.writing.after

    @property
    def owner(self) -> Int[Tensor, " s"]:
        """The row of each element of joined passes, counted over all of them."""
        sizes = [(part.b, part.m) for part in self.parts]
        lengths = torch.tensor([m for b, m in sizes for _ in range(b)], device=self.p.x.device)
        return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)


def attend_in(p: Pass) -> Attending:
    if isinstance(p.sees, Apart):
        parts = tuple(attend_in(part) for part in p.sees.parts)
        return Attending(p, p.x.shape[0], p.x.shape[1], None, False, None, None, parts=parts)
    if isinstance(p.sees, VisibleKeys):
        p = replace(p, sees=visible_keys(p.x, p.sees.mask))
    writing = None if p.memory is None else write_in(p)
    real = None
    # Padding comes after the real positions, so a causal pass never sees it.
    if p.lengths is not None and not isinstance(p.sees, Causal):
        known = p.positions < p.lengths[:, None]
        real = None if bool(known.all()) else known[:, None, None]
    alone = writing is None or (writing.columns == 0 and writing.slots is None)
    causal = isinstance(p.sees, Causal) and alone
    rule = None if causal else rule_of(p.sees, p, writing)
    return attending_of(p, rule, real, writing, causal=causal)


def attending_of(
    p: Pass,
    rule: Bool[Tensor, "*_ m keys"] | None,
    real: Bool[Tensor, "b 1 1 m"] | None,
    writing: Writing | None,
    *,
    causal: bool,
) -> Attending:
    """With the masks of all elements and of the wanted ones."""
    (b, m), wanted = p.x.shape[:2], p.wanted
    visible = both_rules(rule[:, None] if rule is not None and rule.dim() == 3 else rule, real)
    if wanted is None:
        return Attending(p, b, m, rule, causal, real, writing, visible)
    packed = None if b == 1 else asked_rows(wanted, sequences=b, length=m)
    whole = forward_rule(m, p.x.device) if causal else rule
    if whole is not None:
        whole = whole.reshape(m, -1)[wanted] if packed is None else packed.visible(whole)
    return Attending(p, b, m, rule, causal, real, writing, visible, packed, both_rules(whole, real))


def write_in(p: Pass) -> Writing:
    b, m = p.x.shape[:2]
    before = p.memory if isinstance(p.memory, KeyValues) else KeyValues(getattr(p.memory, "capacity", 0))
    keep = m if p.keep is None else p.keep
    slots = None
    if p.position is not None and keep:
        slots = p.position[..., :keep]
        follow = torch.arange(before.end, before.end + keep, device=slots.device)
        slots = None if bool((slots == follow).all()) else slots.expand(b, -1)
    end = before.end + keep if slots is None else max(before.end, int(slots.max()) + 1)
    return Writing(before, m, keep, slots, end)


def attend(
    q: Float[Tensor, "b m h e"],
    k: Float[Tensor, "b l g e"],
    v: Float[Tensor, "b l g e"],
    *,
    visible: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "b m d"]:
    """softmax(q kᵀ/√e) v, where `visible` (broadcast to b h m l) or the causal rule allows.

    A head of keys and values may serve several heads of queries, which follow each other.
    """
    q, k, v, shared = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), q.shape[2] != k.shape[2]
    if suits(q, k):
        out = short_attention(q, k, v, visible=visible, causal=causal, dropout=dropout)
    else:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, is_causal=causal, dropout_p=dropout, enable_gqa=shared
        )
    return out.transpose(1, 2).flatten(2)
