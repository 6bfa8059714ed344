"""Hyena: a causal network of long convolutions, whose filters are functions of the position. Parameters as published.

A filter is computed for `positions` positions, and a shorter text uses the first ones. Convolutions are products of
Fourier transforms, so the time of a row grows as l log l. Position i is predicted from the hidden state of i − 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.backbone import BACKBONES, Backbone, Spec, precision
from unmask.model.backbones.block import drop_some
from unmask.model.backbones.layers import Embeddings
from unmask.model.passing import Abilities, Causal, Pass, States, wanted_of
from unmask.registry import derived

SLOWEST, FASTEST, TARGET, FLOOR = 1.5, 0.3, 0.01, 0.05  # windows: decay to TARGET within these shares of positions


@BACKBONES.register("hyena", "long implicit convolutions, for autoregressive models of DNA")
@dataclass(frozen=True)
class HyenaSpec(Spec):
    """The shape of a Hyena."""

    abilities: ClassVar[Abilities] = Abilities(frozenset({Causal}), memory=True)

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(1024)  # positions of a training row
    width: int = 128  # features per position
    blocks: int = 2  # layers
    inner: int = 0  # features inside the MLP of a layer; 0: four times the width
    positions: int = 0  # positions that the filters cover, the longest text; 0: those of a training row
    features: int = 5  # features of a position from which filters are computed; odd
    filter: int = 64  # features inside the MLP of a filter
    mlps: int = 2  # inner layers of that MLP
    kernel: int = 3  # positions of the short convolution
    frequency: float = 10.0  # of the sines in that MLP, at the start
    tied: bool = False  # the head reuses the embedding
    eps: float = 1e-5  # added to the variance in norms
    dropout: float = 0.0  # dropout probability on both branches of a layer, in training
    causal: bool = derived(True)  # always

    def __post_init__(self) -> None:
        self.check_sizes("filter", "mlps", "kernel")
        self.check_forward()
        if self.features < 3 or self.features % 2 == 0:
            raise UserError(f"features must be an odd number from 3, not {self.features}.")
        if 0 < self.positions < self.length:
            raise UserError(
                f"the filters cover {self.positions} positions, and a row has {self.length}: shorten the rows."
            )

    def sized(self, *, vocab: int, length: int, causal: bool) -> "HyenaSpec":
        """With the sizes of the data. Filters keep the number of positions they were made for."""
        positions = self.positions or length
        return replace(self, vocab=vocab, length=length, causal=causal, positions=positions)

    @property
    def reach(self) -> int:
        return self.positions or self.length

    @property
    def limit(self) -> int:
        return self.reach

    @property
    def hidden(self) -> int:
        return self.inner or 4 * self.width

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        """Three Fourier transforms of twice the length; the filters, which a batch shares, are left out."""
        d, l = self.width, length or self.length
        transforms = 3 * 5 * 2 * math.log2(2 * l) * d
        layer = 8 * d * d + 6 * self.kernel * d + transforms + 4 * d * self.hidden
        return self.blocks * layer + rows * 2 * d * self.vocab

    @property
    def activations(self) -> float:
        """A layer keeps inputs and norms (4 widths), the projections and their products (12), two spectra (4)."""
        return self.blocks * (20 * self.width + 2 * self.hidden)


class Sine(nn.Module):
    """sin(frequency · x), with a learned frequency per feature."""

    def __init__(self, features: int, frequency: float) -> None:
        super().__init__()
        self.freq = nn.Parameter(torch.full((1, features), frequency))

    def forward(self, x: Float[Tensor, "... f"]) -> Float[Tensor, "... f"]:
        return torch.sin(self.freq * x)


class Positions(nn.Module):
    """Features of each position s: s/(n − 1), and cosines and sines of some multiples of 2πs/n."""

    def __init__(self, positions: int, features: int) -> None:
        super().__init__()
        at, bands = torch.arange(positions, dtype=torch.float32), (features - 1) // 2
        t = at[:, None] / max(positions - 1, 1)
        angles = (2 * math.pi * at / positions)[:, None] * torch.linspace(1e-4, bands - 1, bands)
        self.z: Tensor
        self.t: Tensor
        self.register_buffer("z", torch.cat((t, angles.cos(), -angles.sin()), -1)[None])
        self.register_buffer("t", t[None])


class FilterWindow(nn.Module):
    """How fast each channel's filter decays."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.deltas: Tensor
        rates = torch.linspace(math.log(TARGET) / SLOWEST, math.log(TARGET) / FASTEST, width)
        self.register_buffer("deltas", rates[None, None])

    def forward(self, k: Float[Tensor, "1 l d"], t: Float[Tensor, "1 l 1"]) -> Float[Tensor, "1 l d"]:
        return k * (torch.exp(-t * self.deltas.abs()) + FLOOR)


class Filter(nn.Module):
    """The filter of every channel: an MLP with sines, of the position, under a window."""

    def __init__(self, a: HyenaSpec) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(a.width))
        self.pos_emb = Positions(a.reach, a.features)
        self.modulation = FilterWindow(a.width)
        # The published names count the sines as well: linear layers have even numbers, and one sine serves them all.
        layers: dict[str, nn.Module] = {"0": nn.Linear(a.features, a.filter), "1": Sine(a.filter, a.frequency)}
        layers |= {str(2 * i): nn.Linear(a.filter, a.filter) for i in range(1, a.mlps + 1)}
        layers[str(2 * a.mlps + 2)] = nn.Linear(a.filter, a.width, bias=False)
        self.implicit_filter = nn.ModuleDict(layers)

    def forward(self, l: int) -> Float[Tensor, "1 l d"]:
        layers = self.implicit_filter
        *inner, last = (layer for name, layer in layers.items() if name != "1")
        k = self.pos_emb.z[:, :l]
        for layer in inner:
            k = layers["1"](layer(k))
        return self.modulation(last(k), self.pos_emb.t[:, :l])


class Operator(nn.Module):
    """Hyena of order 2: a product, a long convolution, a product."""

    def __init__(self, a: HyenaSpec) -> None:
        super().__init__()
        d = a.width
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.short_filter = nn.Conv1d(3 * d, 3 * d, a.kernel, padding=a.kernel - 1, groups=3 * d)
        self.filter_fn = Filter(a)

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        l = x.shape[1]
        p = self.short_filter(self.in_proj(x).transpose(1, 2))[..., :l].transpose(1, 2)
        gate, other, v = p.chunk(3, -1)
        y = convolve(v * other, self.filter_fn(l), self.filter_fn.bias)
        return self.out_proj(y * gate)


def convolve(
    w: Float[Tensor, "b l d"], k: Float[Tensor, "1 l d"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b l d"]:
    """y_t = Σ_{s ≤ t} k_s w_{t−s} + bias · w_t, in float32 or wider; of twice the length, so that nothing wraps."""
    l, wide = w.shape[1], torch.promote_types(w.dtype, torch.float32)
    w, k = w.to(wide), k.to(wide)
    spectrum = torch.fft.rfft(w, n=2 * l, dim=1) * torch.fft.rfft(k, n=2 * l, dim=1)
    return torch.addcmul(torch.fft.irfft(spectrum, n=2 * l, dim=1)[:, :l], w, bias)


class MLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class HyenaBlock(nn.Module):
    """The operator, then an MLP, both pre-norm with residual connections."""

    def __init__(self, a: HyenaSpec) -> None:
        super().__init__()
        self.dropout = a.dropout
        self.norm1, self.norm2 = nn.LayerNorm(a.width, a.eps), nn.LayerNorm(a.width, a.eps)
        self.mixer = Operator(a)
        self.mlp = MLP(a.width, a.hidden)
        for layer in (self.mixer.in_proj, self.mixer.out_proj, self.mlp.fc1, self.mlp.fc2):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            for layer in (self.mixer.out_proj, self.mlp.fc2):
                layer.weight /= math.sqrt(2 * a.blocks)

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        x = x + self.drop(self.mixer(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))

    def drop(self, y: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        return drop_some(y, self.dropout) if self.training and self.dropout else y


@dataclass(frozen=True, eq=False)
class TokensRead:
    """The tokens read so far: a long convolution has no smaller state, so reading on reads them again."""

    seen: Int[Tensor, "b m"] | Float[Tensor, "b m d"]

    @property
    def filled(self) -> int:
        return self.seen.shape[1]

    def take(self, rows: Int[Tensor, " n"]) -> "TokensRead":
        return TokensRead(self.seen[rows])


class Hyena(Backbone):
    """The causal network."""

    spec: HyenaSpec
    stacked: Mapping[str, int] = {"in_proj": 3}
    unstacked = ("filter_fn",)

    def __init__(self, spec: HyenaSpec) -> None:
        super().__init__()
        a = self.spec = spec
        self.embeddings = Embeddings(a.vocab, a.width)
        self.layers = nn.ModuleList(HyenaBlock(a) for _ in range(a.blocks))
        self.ln_f = nn.LayerNorm(a.width, a.eps)
        self.lm_head = None if a.tied else nn.Linear(a.width, a.vocab, bias=False)
        if self.lm_head is not None:
            nn.init.normal_(self.lm_head.weight, std=0.02)

    @property
    def copies(self) -> dict[str, str]:
        """One frequency serves all sines of a filter."""
        copies = {"lm_head.weight": "embeddings.word_embeddings.weight"} if self.spec.tied else {}
        for i in range(self.spec.blocks):
            sines = f"layers.{i}.mixer.filter_fn.implicit_filter"
            copies |= {f"{sines}.{2 * j + 1}.freq": f"{sines}.1.freq" for j in range(1, self.spec.mlps + 1)}
        return copies

    def decays(self, name: str, p: nn.Parameter) -> bool:
        return p.ndim >= 2 and "filter_fn" not in name

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        return self.embeddings.word_embeddings(tokens)

    def forward(self, p: Pass) -> States:
        """Padding comes after the real positions, so nobody sees it."""
        seen = torch.cat((p.memory.seen, p.x), 1) if isinstance(p.memory, TokensRead) else p.x
        if seen.shape[1] > self.spec.reach:
            raise UserError(
                f"the filters of this network cover {self.spec.reach} positions, the text has {seen.shape[1]}: "
                "shorten it, or train a network on longer rows."
            )
        x = seen if seen.is_floating_point() else self.embed(seen)
        with precision(x.device, self.compute):
            for block in self.layers:
                x = self.run_layer(block, x)
        hidden = self.ln_f(wanted_of(x[:, p.start :], p.wanted))
        return States(hidden, None if p.memory is None else TokensRead(seen))

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        own = self.embeddings.word_embeddings if self.lm_head is None else self.lm_head
        return self.product(hidden, own.weight)


HyenaSpec.network = Hyena
