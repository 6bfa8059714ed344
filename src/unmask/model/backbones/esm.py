"""ESM-2: a pre-norm encoder with rotary positions, for proteins. Parameters have the names of its checkpoints.

The vector of a mask is 0, and the others are scaled up by the share that is hidden, as if masks were dropout.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.attending import Attending
from unmask.model.backbone import BACKBONES, precision
from unmask.model.backbones.bert import module_table
from unmask.model.backbones.block import drop_some
from unmask.model.backbones.encoder import EncoderSpec, PublishedEncoder
from unmask.model.backbones.layers import fresh, in_heads
from unmask.model.backbones.rotary import frequencies, rotate, turns_at
from unmask.model.passing import ATTENTION, Abilities, Apart, Pass
from unmask.registry import derived

HIDDEN = 0.15 * 0.8  # share of masks in the training of the published models


@BACKBONES.register("esm", "ESM-2: a pre-norm encoder with rotary positions, for proteins")
@dataclass(frozen=True)
class EsmSpec(EncoderSpec):
    """The shape of an ESM-2."""

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(128)  # positions of a training row; rotary positions let other lengths run
    width: int = 256  # features per position
    blocks: int = 6  # layers
    heads: int = 4  # attention heads; width must be a multiple of twice their number
    inner: int = 0  # features inside the MLP of a layer; 0: four times the width
    mask: int = -1  # the id whose vector is 0, while the others are scaled; -1: none
    eps: float = 1e-5  # added to the variance in norms
    dropout: float = 0.0  # dropout probability on attention and both branches, in training
    causal: bool = derived(False)  # never: it sees both sides

    def __post_init__(self) -> None:
        self.check()
        if self.width % (2 * self.heads):
            raise UserError(f"width {self.width} must be a multiple of {2 * self.heads}, or change heads.")
        if self.inner < 0 or not -1 <= self.mask < max(self.vocab, 2):
            raise UserError(f"inner must be 0 or more, and mask an id or -1; saw {self.inner} and {self.mask}.")

    @property
    def abilities(self) -> Abilities:
        """Scaling by the share of masks needs whole rows."""
        return super().abilities if self.mask < 0 else Abilities(ATTENTION - {Apart})

    @property
    def hidden(self) -> int:
        return self.inner or 4 * self.width

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        d, l = self.width, length or self.length
        return self.blocks * (8 * d * d + 4 * l * d + 4 * d * self.hidden) + rows * 2 * d * (d + self.vocab)

    @property
    def activations(self) -> float:
        return self.blocks * (10 * self.width + 2 * self.hidden)


class EsmLayer(nn.Module):
    """Attention, then an MLP, both pre-norm with residual connections."""

    def __init__(self, a: EsmSpec) -> None:
        super().__init__()
        self.spec, d = a, a.width
        ways = module_table(query=nn.Linear(d, d), key=nn.Linear(d, d), value=nn.Linear(d, d))
        self.attention = module_table(
            **{"self": ways, "output": module_table(dense=nn.Linear(d, d)), "LayerNorm": nn.LayerNorm(d, a.eps)}
        )
        self.intermediate = module_table(dense=nn.Linear(d, a.hidden))
        self.output = module_table(dense=nn.Linear(a.hidden, d))
        self.LayerNorm = nn.LayerNorm(d, a.eps)

    def forward(
        self, x: Float[Tensor, "b l d"], index: int, attending: Attending, turns: Tensor
    ) -> Float[Tensor, "b l d"]:
        a, ways, out = self.spec, self.attention["self"], self.attention["output"]
        assert isinstance(ways, nn.ModuleDict)
        assert isinstance(out, nn.ModuleDict)
        chance = a.dropout if self.training else 0.0
        h = self.attention["LayerNorm"](x)
        q, k, v = (in_heads(ways[kind](h), a.heads) for kind in ("query", "key", "value"))
        y = out["dense"](
            attending(index, rotate(q, turns, halves=True), rotate(k, turns, halves=True), v, dropout=chance)
        )
        x = x + (drop_some(y, chance) if chance else y)
        y = self.output["dense"](F.gelu(self.intermediate["dense"](self.LayerNorm(x))))
        return x + (drop_some(y, chance) if chance else y)


class Esm(PublishedEncoder):
    """The network."""

    spec: EsmSpec

    def __init__(self, spec: EsmSpec) -> None:
        super().__init__()
        a = self.spec = spec
        d = a.width
        self.embeddings = module_table(word_embeddings=nn.Embedding(a.vocab, d))
        self.encoder = module_table(
            layer=nn.ModuleList(EsmLayer(a) for _ in range(a.blocks)), emb_layer_norm_after=nn.LayerNorm(d, a.eps)
        )
        self.lm_head = module_table(dense=nn.Linear(d, d), layer_norm=nn.LayerNorm(d, a.eps))
        self.lm_head.register_parameter("bias", nn.Parameter(torch.zeros(a.vocab)))
        fresh(self)

    @property
    def copies(self) -> dict[str, str]:
        return {"lm_head.decoder.weight": "embeddings.word_embeddings.weight"}

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        """The vectors of tokens; that of the mask is 0, if masks are like dropout."""
        vectors = F.embedding(tokens, self.words)
        return vectors if self.spec.mask < 0 else vectors.masked_fill((tokens == self.spec.mask)[..., None], 0.0)

    def encode(self, x: Float[Tensor, "b l d"], p: Pass, attending: Attending) -> Float[Tensor, "b l d"]:
        if self.spec.mask >= 0:
            there = torch.ones_like(x[..., 0], dtype=torch.bool)
            if p.lengths is not None:
                there = attending.position < p.lengths[:, None]
            shown = (there & (x != 0).any(-1)).sum(1) / there.sum(1)
            x = x * ((1 - HIDDEN) / shown.clamp(min=1e-6))[:, None, None]  # all are 0, where nothing is shown
        turns = turns_at(attending.position, frequencies(self.spec.width // self.spec.heads, device=x.device))
        return self.encoder["emb_layer_norm_after"](self.through(self.units, x, attending, turns))

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        with precision(hidden.device, self.compute):
            t = self.lm_head["layer_norm"](F.gelu(self.lm_head["dense"](hidden)))
        return self.product(t, self.words, self.lm_head.get_parameter("bias"))


EsmSpec.network = Esm
