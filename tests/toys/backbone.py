"""A toy backbone in one file: a convolution and a small MLP, over both sides or over the past alone."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.model.backbone import BACKBONES, Backbone, Spec
from unmask.model.passing import Pass, States
from unmask.registry import derived


@BACKBONES.register("toy-backbone")
@dataclass(frozen=True)
class ToySpec(Spec):
    """The shape of a toy."""

    vocab: int = derived(1)
    length: int = derived(16)
    causal: bool = derived(False)
    width: int = 16  # features of a position
    reach: int = 2  # positions seen on each side
    dropout: float = 0.0

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        return 2 * self.width * (2 * self.reach + 1) + rows * (4 * self.width**2 + 2 * self.width * self.vocab)


class Toy(Backbone):
    """Depthwise convolution of embeddings, then an MLP."""

    spec: ToySpec

    def __init__(self, spec: ToySpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocab, spec.width)
        self.kernel = nn.Parameter(torch.randn(spec.width, 1, 2 * spec.reach + 1) * 0.5)
        self.mlp = nn.Sequential(nn.Linear(spec.width, spec.width), nn.GELU())
        self.out = nn.Linear(spec.width, spec.vocab)

    @property
    def units(self) -> list[nn.Module]:
        return [self.mlp]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def forward(self, p: Pass) -> States:
        x = p.x if p.x.is_floating_point() else self.embed(p.x)
        if p.lengths is not None:
            x = x * (torch.arange(x.shape[1], device=x.device) < p.lengths[:, None])[..., None]
        reach, seen = self.spec.reach, self.kernel
        if self.spec.causal:  # a position sees itself and those before it
            seen = seen * (torch.arange(2 * reach + 1) <= reach)
        mixed = F.conv1d(x.transpose(1, 2), seen, padding=reach, groups=self.spec.width).transpose(1, 2)
        hidden = self.mlp(mixed)
        return States(hidden if p.wanted is None else hidden.flatten(0, 1)[p.wanted])

    def head(self, hidden: Tensor) -> Tensor:
        return self.out(hidden)


ToySpec.network = Toy
