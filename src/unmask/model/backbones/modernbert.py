"""ModernBERT: a pre-norm encoder with rotary positions, a gated MLP and, in most layers, attention within a window.

Parameters have the names of its checkpoints, except for the head.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.attending import Attending
from unmask.model.backbone import BACKBONES, precision
from unmask.model.backbones.block import drop_some
from unmask.model.backbones.encoder import Encoder, EncoderSpec
from unmask.model.backbones.layers import fresh, in_heads
from unmask.model.backbones.rotary import frequencies, rotate, turns_at
from unmask.model.passing import Pass
from unmask.registry import derived


@BACKBONES.register("modernbert", "ModernBERT: a pre-norm encoder with rotary positions and local attention")
@dataclass(frozen=True)
class ModernBertSpec(EncoderSpec):
    """The shape of a ModernBERT."""

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(128)  # positions of a training row; rotary positions let other lengths run
    width: int = 256  # features per position
    blocks: int = 6  # layers
    heads: int = 4  # attention heads; width must be a multiple of twice their number
    inner: int = 0  # features inside the MLP of a layer; 0: one and a half times the width
    window: int = 128  # tokens that a local layer sees: half of them on each side
    every: int = 3  # one layer in so many sees everything, the first one included
    theta: float = 160_000.0  # base of the rotary positions in layers that see everything
    local_theta: float = 10_000.0  # and in local layers
    eps: float = 1e-5  # added to the variance in norms
    dropout: float = 0.0  # dropout probability on embeddings, attention and both branches, in training
    causal: bool = derived(False)  # never: it sees both sides

    def __post_init__(self) -> None:
        self.check("window", "every")
        if self.width % (2 * self.heads):
            raise UserError(f"width {self.width} must be a multiple of {2 * self.heads}, or change heads.")
        if self.inner < 0 or self.theta <= 0 or self.local_theta <= 0:
            raise UserError("inner must be 0 or more, and the bases of the rotary positions above 0.")

    @property
    def hidden(self) -> int:
        return self.inner or 3 * self.width // 2

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        """Local layers are computed as the others are, with a rule of who sees whom."""
        d, l = self.width, length or self.length
        return self.blocks * (8 * d * d + 4 * l * d + 6 * d * self.hidden) + rows * 2 * d * (d + self.vocab)

    @property
    def activations(self) -> float:
        return self.blocks * (10 * self.width + 4 * self.hidden)


class ModernBertLayer(nn.Module):
    """Attention, then a gated MLP, both pre-norm with residual connections; nothing has a bias."""

    def __init__(self, a: ModernBertSpec, number: int) -> None:
        super().__init__()
        self.spec, self.local = a, bool(number % a.every)
        d = a.width
        self.attn_norm = nn.LayerNorm(d, a.eps, bias=False) if number else nn.Identity()
        self.attn = nn.ModuleDict({"Wqkv": nn.Linear(d, 3 * d, bias=False), "Wo": nn.Linear(d, d, bias=False)})
        self.mlp_norm = nn.LayerNorm(d, a.eps, bias=False)
        self.mlp = nn.ModuleDict(
            {"Wi": nn.Linear(d, 2 * a.hidden, bias=False), "Wo": nn.Linear(a.hidden, d, bias=False)}
        )

    def forward(
        self, x: Float[Tensor, "b l d"], index: int, ways: tuple[Attending, Attending], turns: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "b l d"]:
        """`ways`, `turns`: attention and rotations of layers that see everything, and of local ones."""
        a = self.spec
        chance = a.dropout if self.training else 0.0
        q, k, v = (in_heads(one, a.heads) for one in self.attn["Wqkv"](self.attn_norm(x)).chunk(3, -1))
        q, k = (rotate(part, turns[self.local], halves=True) for part in (q, k))
        y = ways[self.local](index, q, k, v, dropout=chance)
        y = self.attn["Wo"](y)
        x = x + (drop_some(y, chance) if chance else y)
        h, gate = self.mlp["Wi"](self.mlp_norm(x)).chunk(2, -1)
        y = self.mlp["Wo"](F.gelu(h) * gate)
        return x + (drop_some(y, chance) if chance else y)


class ModernBert(Encoder):
    """The network."""

    spec: ModernBertSpec
    stacked: Mapping[str, int] = {"Wqkv": 3, "Wi": 2}

    def __init__(self, spec: ModernBertSpec) -> None:
        super().__init__()
        a = self.spec = spec
        d = a.width
        self.tok_embeddings = nn.Embedding(a.vocab, d)
        self.embedding_norm = nn.LayerNorm(d, a.eps, bias=False)
        self.layers = nn.ModuleList(ModernBertLayer(a, number) for number in range(a.blocks))
        self.final_norm = nn.LayerNorm(d, a.eps, bias=False)
        self.prediction = nn.ModuleDict(
            {"dense": nn.Linear(d, d, bias=False), "norm": nn.LayerNorm(d, a.eps, bias=False)}
        )
        self.prediction.register_parameter("bias", nn.Parameter(torch.zeros(a.vocab)))
        fresh(self)

    @property
    def copies(self) -> dict[str, str]:
        return {"prediction.decoder": "tok_embeddings.weight"}

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        return self.tok_embeddings(tokens)

    def encode(self, x: Float[Tensor, "b l d"], p: Pass, attending: Attending) -> Float[Tensor, "b l d"]:
        a, near = self.spec, attending.near(self.spec.window // 2)
        bases = (frequencies(a.width // a.heads, base, x.device) for base in (a.theta, a.local_theta))
        full, local = (turns_at(attending.position, base) for base in bases)
        x = self.drop(self.embedding_norm(x))
        return self.final_norm(self.through(self.units, x, (attending, near), (full, local)))

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        with precision(hidden.device, self.compute):
            t = self.prediction["norm"](F.gelu(self.prediction["dense"](hidden)))
        return self.product(t, self.tok_embeddings.weight, self.prediction.get_parameter("bias"))


ModernBertSpec.network = ModernBert
