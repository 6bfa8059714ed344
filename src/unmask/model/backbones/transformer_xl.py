"""Transformer-XL: attention by distance, and a memory of the text before the row. [Dai et al. 2019]

A row continues the row of the step before. Each layer attends to the states that the layer below had at the last
`memory` positions before the row, as they were then: no gradient reaches them. Positions are known by their distance
only. With adaptive input and output (`cutoffs`), rare tokens have narrow embeddings and share one entry of the first
softmax per group. Parameters have the names of the authors' code. Position i is predicted from the state of i − 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.backbone import BACKBONES, Backbone, Spec, precision
from unmask.model.passing import Abilities, Causal, Empty, Memory, Pass, Segment, States, wanted_of
from unmask.registry import derived
from unmask.settings import at_least

Past = tuple[Float[Tensor, "b _ h e"], Float[Tensor, "b _ h e"]]  # keys and values of earlier positions


@BACKBONES.register("transformer-xl", "attention by distance with a memory of the text before, autoregressive")
@dataclass(frozen=True)
class TransformerXLSpec(Spec):
    """The shape of a Transformer-XL."""

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(128)  # positions of a training row
    width: int = 256  # features per position
    blocks: int = 6  # layers
    heads: int = 4  # attention heads
    head: int = 0  # features of a head; 0: width / heads
    inner: int = 0  # features inside the MLP; 0: four widths
    memory: int = 128  # positions before the row that a layer remembers; 0: none
    same_length: bool = False  # each position sees exactly `memory` positions, itself included
    clamp: int = 0  # largest distance that is told from greater ones; 0: all are
    embed: int = 0  # features of the embedding; 0: width
    cutoffs: tuple[int, ...] = ()  # ids at which groups of rarer tokens begin: adaptive input and softmax
    divide: int = 1  # each group's embedding is narrower than the one before by this factor
    tied: bool = True  # the head reuses the embedding
    tied_projections: bool = False  # and, in all groups but the first, the projections
    separate: bool = False  # each layer has its own pair of attention biases
    dropout: float = 0.0  # dropout probability on embeddings, both branches and the MLP, in training
    causal: bool = derived(True)  # always: it reads forward

    def __post_init__(self) -> None:
        self.check_sizes("heads", "divide")
        self.check_forward()
        at_least(0, **{name: getattr(self, name) for name in ("head", "inner", "memory", "clamp", "embed")})
        if not self.head and self.width % self.heads:
            raise UserError(f"width {self.width} cannot be split into {self.heads} heads: change one, or set head.")
        if self.width % 2:
            raise UserError(f"width must be even, for as many sines as cosines of the distance; saw {self.width}.")
        if self.same_length and not self.memory:
            raise UserError("same_length needs a memory: set memory to the positions that each position sees.")
        if any(low >= high for low, high in pairwise((0, *self.cutoffs))):
            raise UserError(f"cutoffs must be ids from 1 that grow, not {list(self.cutoffs)}.")
        if self.groups > 1 and self.embedded // self.divide ** (self.groups - 1) < 1:
            raise UserError(
                f"divide = {self.divide} leaves the last of {self.groups} groups no feature of {self.embedded}: "
                "use a smaller divide, fewer cutoffs or a larger embed."
            )

    @property
    def abilities(self) -> Abilities:
        return Abilities(frozenset({Causal}), memory=True, carried=self.memory > 0)

    @property
    def features(self) -> int:
        """Features of a head."""
        return self.head or self.width // self.heads

    @property
    def hidden(self) -> int:
        """Features inside the MLP."""
        return self.inner or 4 * self.width

    @property
    def embedded(self) -> int:
        """Features of the first group's embedding."""
        return self.embed or self.width

    @property
    def groups(self) -> int:
        return len(self.cutoffs) + 1

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first id of each group of tokens, and the one after its last."""
        if self.cutoffs and self.cutoffs[-1] >= self.vocab:
            raise UserError(
                f"the cutoffs {list(self.cutoffs)} do not fit a vocabulary of {self.vocab} ids: the last one must be "
                "below it, so that its group has a token. Change model.cutoffs or the tokenizer."
            )
        return list(pairwise((0, *self.cutoffs, self.vocab)))

    def check_lane(self, tokens: int) -> None:
        if tokens < self.memory:
            raise UserError(
                f"each row of a batch continues a text of {tokens} tokens, and the network remembers {self.memory}: "
                f"use model.memory = {max(1, tokens)} or less, a smaller batch or more text."
            )

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        l, d, wide = length or self.length, self.width, self.heads * self.features
        seen = self.memory + (l / 2 if not self.same_length else 0)
        again = 1 + self.memory / l  # keys and values of the memory are computed anew in every step
        layer = 2 * d * wide * (2 + 2 * again) + 6 * seen * wide + 4 * d * self.hidden
        return self.blocks * layer + rows * self.head_flops

    @property
    def head_flops(self) -> float:
        """All groups, as for a distribution over every token."""
        total = 0.0
        for i, (low, high) in enumerate(self.spans):
            size = self.embedded // self.divide**i
            total += 2 * size * (high - low) + (2 * self.width * size if self.projected else 0)
        return total

    @property
    def projected(self) -> bool:
        """Whether embeddings are projected to the width."""
        return self.divide > 1 or self.embedded != self.width

    @property
    def activations(self) -> float:
        """Per layer: three norms' inputs, q, k, v, both sides of the ReLU, and the attention of all heads."""
        seen = self.memory + self.length
        each = 6 * self.width + 5 * self.heads * self.features + 2 * self.hidden + 3 * self.heads * seen
        return self.blocks * each


@dataclass(frozen=True, eq=False)
class MemoryWindow:
    """The last positions that are still seen: their states in training, else their keys and values."""

    layers: tuple[Tensor | Past | None, ...]
    capacity: int = 0
    filled: int = 0
    distances: tuple[Float[Tensor, "k h e"], ...] = ()  # projected, per layer: the same at every step
    trained: bool = False  # states are kept, and the gradient reaches the layers that make keys of them

    @property
    def length(self) -> int:
        first = self.layers[0]
        return 0 if first is None else (first if isinstance(first, Tensor) else first[0]).shape[1]

    def take(self, rows: Int[Tensor, " n"]) -> "MemoryWindow":
        taken = [
            p if p is None else p[rows] if isinstance(p, Tensor) else (p[0][rows], p[1][rows]) for p in self.layers
        ]
        return replace(self, layers=tuple(taken))

    def with_states(self, states: Float[Tensor, "b layers q d"], most: int) -> "Segment":
        """The memory for the next step: detached, no gradient reaches an earlier one."""
        old = [layer for layer in self.layers if isinstance(layer, Tensor)]
        states = torch.cat((torch.stack(old, 1), states.detach()), 2) if old else states.detach()
        return Segment(states[:, :, -most:].contiguous(), self.filled + states.shape[2] - self.length)

    def with_keys(self, pasts: list[Past], distances: tuple[Tensor, ...], most: int) -> "MemoryWindow":
        new = pasts[0][0].shape[1]
        seen = tuple((k[:, max(0, new - most) :], v[:, max(0, new - most) :]) for k, v in pasts)
        return replace(self, layers=seen, filled=self.filled + new - self.length, distances=distances)


def window_of(memory: Memory, layers: int) -> MemoryWindow:
    if isinstance(memory, MemoryWindow):
        return memory
    if isinstance(memory, Segment):
        states = (None,) * layers if memory.states is None else memory.states.unbind(1)
        return MemoryWindow(states, filled=memory.filled, trained=True)
    return MemoryWindow((None,) * layers, memory.capacity if isinstance(memory, Empty) else 0)


class Distances(nn.Module):
    """The vector of a distance: its sines at width/2 frequencies, then its cosines."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0, width, 2, dtype=torch.float32) / width))

    def forward(self, total: int, clamp: int) -> Float[Tensor, "k d"]:
        """Of the distances total − 1 down to 0."""
        steps = torch.arange(total - 1, -1, -1, device=self.inv_freq.device, dtype=self.inv_freq.dtype)
        angles = (steps.clamp(max=clamp) if clamp else steps)[:, None] * self.inv_freq
        return torch.cat((angles.sin(), angles.cos()), -1)


class Adaptive(nn.Module):
    """Embeddings in groups: the rarer the tokens the narrower; projected to the width, times its root."""

    def __init__(self, a: TransformerXLSpec) -> None:
        super().__init__()
        self.width, self.spans = a.width, tables(a)
        sizes = [a.embedded // a.divide**i for i in range(len(self.spans))]
        self.emb_layers = nn.ModuleList(
            nn.Embedding(high - low, size) for (low, high), size in zip(self.spans, sizes, strict=True)
        )
        self.emb_projs = nn.ParameterList(nn.Parameter(torch.empty(a.width, size)) for size in sizes if a.projected)

    def forward(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        flat = tokens.flatten()
        vectors = self.table(0).weight.new_zeros(len(flat), self.width)
        for i, (low, high) in enumerate(self.spans):
            here = ((flat >= low) & (flat < high)).nonzero().squeeze(-1)
            x = self.table(i)(flat[here] - low)
            x = F.linear(x, self.emb_projs[i]) if len(self.emb_projs) else x
            vectors = vectors.index_copy(0, here, x * self.width**0.5)
        return vectors.view(*tokens.shape, self.width)

    def table(self, i: int) -> nn.Embedding:
        layer = self.emb_layers[i]
        assert isinstance(layer, nn.Embedding)
        return layer


class Criterion(nn.Module):
    """The parameters of the head: a table and a projection per group, and an entry for each group but the first."""

    def __init__(self, a: TransformerXLSpec) -> None:
        super().__init__()
        sizes = [a.embedded // a.divide**i for i in range(a.groups)]
        layers = [nn.Linear(sizes[i], high - low) for i, (low, high) in enumerate(tables(a))]
        self.out_layers = nn.ModuleList(layers)
        own = [i for i in range(a.groups) if a.projected and not (a.tied_projections and i)]
        self.out_projs = nn.ParameterDict({str(i): nn.Parameter(torch.empty(a.width, sizes[i])) for i in own})
        if a.cutoffs:
            self.cluster_weight = nn.Parameter(torch.empty(len(a.cutoffs), a.embedded))
            self.cluster_bias = nn.Parameter(torch.zeros(len(a.cutoffs)))
        for layer in layers:
            nn.init.zeros_(layer.bias)
            if a.tied:
                layer.register_parameter("weight", None)


def tables(a: TransformerXLSpec) -> list[tuple[int, int]]:
    """The ids of each table of embeddings: one table, unless groups differ in width."""
    spans = a.spans
    return spans if a.divide > 1 else [(0, a.vocab)]


class DistanceAttention(nn.Module):
    """Attention with scores by content and by distance, added to its input and then normed."""

    def __init__(self, a: TransformerXLSpec) -> None:
        super().__init__()
        self.heads, self.dropout, wide = a.heads, nn.Dropout(a.dropout), a.heads * a.features
        self.qkv_net = nn.Linear(a.width, 3 * wide, bias=False)
        self.o_net = nn.Linear(wide, a.width, bias=False)
        self.r_net = nn.Linear(a.width, wide, bias=False)
        self.layer_norm = nn.LayerNorm(a.width)
        if a.separate:
            self.r_w_bias = nn.Parameter(torch.zeros(a.heads, a.features))
            self.r_r_bias = nn.Parameter(torch.zeros(a.heads, a.features))

    def past(self, states: Float[Tensor, "b m d"]) -> Past:
        """The keys and values of remembered states."""
        _, w_k, w_v = self.qkv_net.weight.chunk(3)
        k, v = (F.linear(states, w).unflatten(-1, (self.heads, -1)) for w in (w_k, w_v))
        return k, v

    def by_distance(self, vectors: Float[Tensor, "k d"]) -> Float[Tensor, "k h e"]:
        return self.r_net(vectors).unflatten(-1, (self.heads, -1))

    def forward(
        self,
        x: Float[Tensor, "b q d"],
        past: Past | None,
        r: Float[Tensor, "k h e"],
        biases: tuple[Float[Tensor, "h e"], Float[Tensor, "h e"]],
        visible: Bool[Tensor, "q k"],
    ) -> tuple[Float[Tensor, "b q d"], Past]:
        """[(q_i + u)·k_j + (q_i + v)·W_r R_{i−j}]/√e, softmax over what is visible; and all keys and values."""
        q, k, v = self.qkv_net(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if past is not None:
            k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)
        content = torch.einsum("bihe,bjhe->bhij", q + biases[0], k)
        distance = align_distances(torch.einsum("bihe,jhe->bhij", q + biases[1], r))
        scores = ((content + distance) / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
        out = torch.einsum("bhij,bjhe->bihe", scores.softmax(-1).to(v.dtype), v).flatten(2)
        return self.layer_norm(x + self.dropout(self.o_net(out))), (k, v)


def align_distances(scores: Float[Tensor, "b h q k"]) -> Float[Tensor, "b h q k"]:
    """From a column per distance k − 1 .. 0 to a column per position: entry (i, j) moves to the distance of i and j.

    Each row is shifted by one more than the row below it: a column of zeros is put in front, and the rows are read
    off the flattened matrix one entry later. What lies ahead of a position gets entries of the next row.
    """
    b, h, q, k = scores.shape
    padded = F.pad(scores, (1, 0)).view(b, h, k + 1, q)
    return padded[:, :, 1:].reshape(b, h, q, k)


class FeedForward(nn.Module):
    """The MLP, added to its input and then normed."""

    def __init__(self, a: TransformerXLSpec) -> None:
        super().__init__()
        drop = nn.Dropout(a.dropout)
        self.CoreNet = nn.Sequential(
            nn.Linear(a.width, a.hidden), nn.ReLU(), drop, nn.Linear(a.hidden, a.width), drop
        )
        self.layer_norm = nn.LayerNorm(a.width)

    def forward(self, x: Float[Tensor, "b q d"]) -> Float[Tensor, "b q d"]:
        return self.layer_norm(x + self.CoreNet(x))


class TransformerXLLayer(nn.Module):
    """Attention, then the MLP."""

    def __init__(self, a: TransformerXLSpec) -> None:
        super().__init__()
        self.dec_attn, self.pos_ff = DistanceAttention(a), FeedForward(a)

    def forward(
        self,
        x: Float[Tensor, "b q d"],
        before: Float[Tensor, "b m d"] | Past | None,
        r: Tensor,
        biases: tuple[Tensor, Tensor],
        visible: Tensor,
    ) -> tuple[Float[Tensor, "b q d"], Past]:
        """`before`: remembered states, or their keys and values; `r`: vectors of distances, or their projections."""
        past = self.dec_attn.past(before) if isinstance(before, Tensor) else before
        r = self.dec_attn.by_distance(r) if r.dim() == 2 else r
        y, past = self.dec_attn(x, past, r, biases, visible)
        return self.pos_ff(y), past


class TransformerXL(Backbone):
    """The network."""

    spec: TransformerXLSpec
    constants = frozenset({"pos_emb.inv_freq"})
    stacked: Mapping[str, int] = {"qkv_net": 3}
    unstacked = ("_bias",)

    def __init__(self, spec: TransformerXLSpec) -> None:
        super().__init__()
        a = self.spec = spec
        self.word_emb, self.pos_emb, self.drop = Adaptive(a), Distances(a.width), nn.Dropout(a.dropout)
        self.layers = nn.ModuleList(TransformerXLLayer(a) for _ in range(a.blocks))
        self.crit = Criterion(a)
        if not a.separate:
            self.r_w_bias = nn.Parameter(torch.zeros(a.heads, a.features))
            self.r_r_bias = nn.Parameter(torch.zeros(a.heads, a.features))
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.01 if "_projs" in name else 0.02)

    @property
    def stack(self) -> list[TransformerXLLayer]:
        return [layer for layer in self.layers if isinstance(layer, TransformerXLLayer)]

    @property
    def copies(self) -> dict[str, str]:
        a, copies = self.spec, {}
        if a.tied:
            for i in range(len(self.word_emb.emb_layers)):
                copies[f"crit.out_layers.{i}.weight"] = f"word_emb.emb_layers.{i}.weight"
        if a.tied_projections and a.projected:
            for i in range(1, a.groups):
                copies[f"crit.out_projs.{i}"] = f"word_emb.emb_projs.{i if a.divide > 1 else 0}"
        return copies

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        return self.word_emb(tokens)

    def forward(self, p: Pass) -> States:
        """Padding comes after the real positions, so nobody sees it."""
        x = p.x if p.x.is_floating_point() else self.embed(p.x)
        memory = None if p.memory is None else window_of(p.memory, len(self.layers))
        before = (None,) * len(self.layers) if memory is None else memory.layers
        m, q = 0 if memory is None else memory.length, x.shape[1]
        visible, inputs, pasts = self.visible(m, q), [], []
        with precision(x.device, self.compute):
            x = self.drop(x)
            distances = self.distances(memory, m + q, x.dtype)
            for layer, states, r in zip(self.stack, before, distances, strict=True):
                inputs.append(x)
                own: DistanceAttention | TransformerXL = layer.dec_attn if self.spec.separate else self
                biases = own.r_w_bias, own.r_r_bias
                x, past = self.run_layer(layer, x, states, r[-m - q :], biases, visible)
                pasts.append(past)
            hidden = wanted_of(self.drop(x), p.wanted)
        if memory is None:
            return States(hidden)
        if memory.trained:
            return States(hidden, memory.with_states(torch.stack(inputs, 1), self.spec.memory))
        return States(hidden, memory.with_keys(pasts, distances, self.spec.memory))

    def distances(self, memory: MemoryWindow | None, total: int, kind: torch.dtype) -> tuple[Tensor, ...]:
        """The vectors of distances for each layer: those of reading on are projected once, and kept."""
        if memory is None or memory.trained:
            return (self.drop(self.pos_emb(total, self.spec.clamp).to(kind)),) * len(self.layers)
        if memory.distances and len(memory.distances[0]) >= total:
            return memory.distances
        room = max(total, min(memory.capacity, self.spec.memory + total - memory.length))
        r = self.pos_emb(room, self.spec.clamp)
        return tuple(layer.dec_attn.by_distance(r) for layer in self.stack)

    def visible(self, before: int, length: int) -> Bool[Tensor, "q k"]:
        """Who sees whom: not ahead; with `same_length` exactly `memory` positions, oneself included."""
        place = torch.arange(before + length, device=self.device)
        distance = place[before:, None] - place
        near = distance < self.spec.memory if self.spec.same_length else torch.ones_like(distance, dtype=torch.bool)
        return (distance >= 0) & near

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        """Logits; with cutoffs log-probabilities: of the first group, and of each other one times those within it."""
        a = self.spec
        with precision(hidden.device, self.compute):
            first = self.group_logits(hidden, 0)
            wide = torch.promote_types(first.dtype, torch.float32)
            if not a.cutoffs:
                return first.to(wide)
            first = first.to(wide).log_softmax(-1)
            short = a.cutoffs[0]
            parts = [first[..., :short]]
            for i in range(1, a.groups):  # the entries of the groups are in reverse order
                parts.append(first[..., -i, None] + self.group_logits(hidden, i).to(wide).log_softmax(-1))
        return torch.cat(parts, -1)

    def group_logits(self, hidden: Float[Tensor, "*shape d"], group: int) -> Float[Tensor, "*shape v"]:
        """The logits within a group; those of the first end with one entry for each other group."""
        a, i = self.spec, group if self.spec.divide > 1 else 0
        layer, (low, high) = self.crit.out_layers[i], a.spans[group]
        assert isinstance(layer, nn.Linear)
        weight: Tensor = self.word_emb.table(i).weight if a.tied else layer.weight
        bias: Tensor = layer.bias
        if a.divide == 1:
            weight, bias = weight[low:high], bias[low:high]
        if a.cutoffs and group == 0:
            weight, bias = torch.cat((weight, self.crit.cluster_weight)), torch.cat((bias, self.crit.cluster_bias))
        if a.projected:
            own = str(group) in self.crit.out_projs
            projection = self.crit.out_projs[str(group)] if own else self.word_emb.emb_projs[i]
            hidden = F.linear(hidden, projection.t())
        return F.linear(hidden, weight, bias)


TransformerXLSpec.network = TransformerXL
