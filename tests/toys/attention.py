"""A toy attention network in one file: block training, cached blocks, causal reading, prefix cache come for free."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask.model.attending import attend_in
from unmask.model.backbone import BACKBONES, Backbone, Spec
from unmask.model.passing import ATTENTION, Abilities, Pass, States
from unmask.registry import derived


@BACKBONES.register("toy-attention")
@dataclass(frozen=True)
class ToyAttentionSpec(Spec):
    """The shape of a toy."""

    vocab: int = derived(1)
    length: int = derived(16)
    causal: bool = derived(False)
    width: int = 16  # features of a position
    blocks: int = 2  # layers
    heads: int = 2
    dropout: float = 0.0

    @property
    def abilities(self) -> Abilities:
        return Abilities(ATTENTION, memory=True, positions=True)

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        return self.blocks * 8 * self.width**2 + rows * 2 * self.width * self.vocab


class ToyAttention(Backbone):
    """Attention with waves of positions added to the queries and keys, and nothing else."""

    spec: ToyAttentionSpec

    def __init__(self, spec: ToyAttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocab, spec.width)
        self.qkv = nn.ModuleList(nn.Linear(spec.width, 3 * spec.width) for _ in range(spec.blocks))
        self.out = nn.Linear(spec.width, spec.vocab)

    @property
    def units(self) -> list[nn.Module]:
        return list(self.qkv)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def forward(self, p: Pass) -> States:
        x, attending = p.x if p.x.is_floating_point() else self.embed(p.x), attend_in(p)
        waves = torch.arange(1, self.spec.width + 1, device=x.device) / self.spec.width
        place = (attending.position[..., None] * waves).cos().to(x.dtype)
        for i, layer in enumerate(self.qkv):
            q, k, v = layer(x).chunk(3, -1)
            q, k, v = (one.unflatten(-1, (self.spec.heads, -1)) for one in (q + place, k + place, v))
            x = torch.tanh(x + attending(i, q, k, v))
        return attending.states(x)

    def head(self, hidden: Tensor) -> Tensor:
        return self.out(hidden)


ToyAttentionSpec.network = ToyAttention
