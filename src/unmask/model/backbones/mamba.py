"""Mamba: a causal network of selective state spaces, whose time grows with the length and whose memory does not grow.

Parameters have the names of the published checkpoints. Position i is predicted from the hidden state of i − 1.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.model.backbone import BACKBONES, Spec, precision
from unmask.model.backbones.block import drop_some
from unmask.model.backbones.state_space import Mixer, MixerNetwork, Past, RMSNorm, Size
from unmask.model.passing import Abilities, Causal, Pass, States, wanted_of
from unmask.registry import derived


@BACKBONES.register("mamba", "selective state spaces, for autoregressive models of long sequences")
@dataclass(frozen=True)
class MambaSpec(Spec):
    """The shape of a Mamba."""

    abilities: ClassVar[Abilities] = Abilities(frozenset({Causal}), memory=True)

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(1024)  # positions of a training row; other lengths run as well
    width: int = 128  # features per position
    blocks: int = 4  # layers
    state: int = 16  # numbers that each channel remembers
    kernel: int = 4  # positions of the convolution
    expand: int = 2  # channels per feature
    rank: int = 0  # features from which the step size is computed; 0: a sixteenth of the width
    tied: bool = True  # the head reuses the embedding
    eps: float = 1e-5  # added to the mean square in norms
    dropout: float = 0.0  # dropout probability on the output of a layer, in training
    causal: bool = derived(True)  # always: it reads forward

    def __post_init__(self) -> None:
        self.check_sizes("state", "kernel", "expand")
        self.check_forward()

    @property
    def size(self) -> Size:
        return Size(self.width, self.state, self.kernel, self.expand, self.rank or math.ceil(self.width / 16))

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        return self.blocks * (self.size.projection_flops + self.size.flops) + rows * 2 * self.width * self.vocab

    @property
    def activations(self) -> float:
        """A layer keeps two widths, and its channels: of convolution, SiLU, softplus, scan and gate."""
        return self.blocks * (2 * self.width + self.size.activations)


@dataclass(frozen=True)
class LayerStates:
    """The state of every layer after the tokens read so far: its size does not grow."""

    layers: tuple[Past | None, ...]
    filled: int = 0

    def take(self, rows: Int[Tensor, " n"]) -> "LayerStates":
        return replace(self, layers=tuple(None if past is None else past.take(rows) for past in self.layers))


class MambaBlock(nn.Module):
    """Norm, mixer, gate and residual connection."""

    def __init__(self, a: MambaSpec) -> None:
        super().__init__()
        self.dropout = a.dropout
        self.norm = RMSNorm(a.width, a.eps)
        self.mixer = Mixer(a.size, layers=a.blocks)

    def forward(self, x: Float[Tensor, "b l d"], past: Past | None = None) -> tuple[Float[Tensor, "b l d"], Past]:
        assert self.mixer.in_proj is not None
        assert self.mixer.out_proj is not None
        u, z = self.mixer.in_proj(self.norm(x)).chunk(2, -1)
        y, past = self.mixer.scanned(u, past)
        out = self.mixer.out_proj(y * F.silu(z))
        if self.training and self.dropout:
            out = drop_some(out, self.dropout)
        return x + out, past


class Mamba(MixerNetwork):
    """The causal network."""

    spec: MambaSpec

    def __init__(self, spec: MambaSpec) -> None:
        super().__init__()
        a = self.spec = spec
        self.embedding = nn.Embedding(a.vocab, a.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(MambaBlock(a) for _ in range(a.blocks))
        self.norm_f = RMSNorm(a.width, a.eps)
        self.lm_head = None if a.tied else nn.Linear(a.width, a.vocab, bias=False)

    @property
    def copies(self) -> dict[str, str]:
        return {"lm_head.weight": "embedding.weight"} if self.spec.tied else {}

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        return self.embedding(tokens)

    def forward(self, p: Pass) -> States:
        """Padding comes after the real positions, so nobody sees it."""
        x = p.x if p.x.is_floating_point() else self.embed(p.x)
        pasts = p.memory.layers if isinstance(p.memory, LayerStates) else (None,) * len(self.layers)
        after = []
        with precision(x.device, self.compute):
            for block, past in zip(self.layers, pasts, strict=True):
                x, past = self.run_layer(block, x, past)
                after.append(past)
        memory = None if p.memory is None else LayerStates(tuple(after), p.start + x.shape[1])
        return States(self.norm_f(wanted_of(x, p.wanted)), memory)

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        return self.product(hidden, self.embedding.weight if self.lm_head is None else self.lm_head.weight)


MambaSpec.network = Mamba
