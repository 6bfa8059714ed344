"""BERT: a post-norm encoder with learned positions and segments. Parameters have the names of its checkpoints.

RoBERTa, DistilBERT, ALBERT and MosaicBERT have the same blocks; fields of the spec say where they differ: the first
row of positions, no segments, a narrow embedding and one shared block, linear biases of attention and a gated MLP.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.attending import Attending
from unmask.model.backbone import BACKBONES, precision
from unmask.model.backbones.block import drop_some
from unmask.model.backbones.encoder import EncoderSpec, PublishedEncoder
from unmask.model.backbones.layers import fresh, in_heads
from unmask.model.passing import ATTENTION, Abilities, Apart, Causal, Pass
from unmask.registry import derived
from unmask.text.tokens.export import Inputs


@BACKBONES.register("bert", "BERT and its relatives: post-norm encoders with learned positions")
@dataclass(frozen=True)
class BertSpec(EncoderSpec):
    """The shape of a BERT."""

    vocab: int = derived(1)  # ids, the mask included
    length: int = derived(128)  # positions of a training row
    width: int = 256  # features per position
    blocks: int = 4  # layers
    heads: int = 4  # attention heads; width must be a multiple of their number
    inner: int = 0  # features inside the MLP of a layer; 0: four times the width
    positions: int = 0  # rows of the table of positions, the longest text; 0: those of a training row
    offset: int = 0  # rows of that table before the first position; RoBERTa: 2
    alibi: bool = False  # linear biases of attention in place of the table of positions, as in MosaicBERT
    segments: int = 2  # embeddings of segments; 0: none
    embedding: int = 0  # features of the embeddings, mapped to the width; 0: the width; ALBERT: fewer
    shared: bool = False  # all layers have the same weights, as in ALBERT
    gated: bool = False  # a gated MLP, as in MosaicBERT
    joined: bool = False  # queries, keys and values in one matrix, as in MosaicBERT
    tanh: bool = False  # the tanh approximation of GELU, as in ALBERT
    pooled: bool = False  # a pooler over [CLS], for classification
    eps: float = 1e-12  # added to the variance in norms; RoBERTa: 1e-5
    dropout: float = 0.0  # dropout probability on embeddings, attention and both branches, in training
    causal: bool = derived(False)  # never: it sees both sides

    def __post_init__(self) -> None:
        self.check()
        for name in ("inner", "positions", "offset", "segments", "embedding"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must be 0 or more, not {getattr(self, name)}.")

    @property
    def reach(self) -> int | None:
        return None if self.alibi else self.positions or self.length

    @property
    def abilities(self) -> Abilities:
        """Linear biases need the positions of whole rows."""
        return Abilities(ATTENTION - {Apart, Causal}) if self.alibi else super().abilities

    @property
    def inputs(self) -> Inputs:
        """RoBERTa, known by its offset, has two tokens between the texts of a pair."""
        return Inputs(self.reach, segments=self.segments > 1, separators=2 if self.offset else 1)

    @property
    def hidden(self) -> int:
        return self.inner or 4 * self.width

    @property
    def embedded(self) -> int:
        return self.embedding or self.width

    def sized(self, *, vocab: int, length: int, causal: bool) -> "BertSpec":
        """With the sizes of the data. The table keeps the number of positions it was made for."""
        positions = self.positions or length
        return replace(self, vocab=vocab, length=length, causal=causal, positions=positions)

    def flops(self, *, rows: float = 1.0, length: int | None = None) -> float:
        d, e, l = self.width, self.embedded, length or self.length
        layer = 8 * d * d + 4 * l * d + (6 if self.gated else 4) * d * self.hidden
        mapped = 2 * e * d if self.embedding else 0
        return mapped + self.blocks * layer + rows * (2 * d * e + 2 * e * self.vocab)

    @property
    def activations(self) -> float:
        """A layer keeps its input, q, k, v, the attention's output, two branches and sums, and both sides of GELU."""
        return self.blocks * (10 * self.width + (4 if self.gated else 2) * self.hidden)


def module_table(**modules: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(modules)


class BertLayer(nn.Module):
    """Attention, then an MLP, each followed by a norm of the sum with its input."""

    def __init__(self, a: BertSpec) -> None:
        super().__init__()
        self.spec, d = a, a.width
        kinds = ("Wqkv",) if a.joined else ("query", "key", "value")
        ways = module_table(**{kind: nn.Linear(d, 3 * d if a.joined else d) for kind in kinds})
        self.attention = module_table(
            **{"self": ways, "output": module_table(dense=nn.Linear(d, d), LayerNorm=nn.LayerNorm(d, a.eps))}
        )
        self.intermediate = module_table(dense=nn.Linear(d, a.hidden * (2 if a.gated else 1), bias=not a.gated))
        self.output = module_table(dense=nn.Linear(a.hidden, d), LayerNorm=nn.LayerNorm(d, a.eps))

    def forward(
        self, x: Float[Tensor, "b l d"], index: int, attending: Attending, bias: Tensor | None
    ) -> Float[Tensor, "b l d"]:
        a, ways, out = self.spec, self.attention["self"], self.attention["output"]
        assert isinstance(ways, nn.ModuleDict)
        assert isinstance(out, nn.ModuleDict)
        chance = a.dropout if self.training else 0.0
        q, k, v = ways["Wqkv"](x).chunk(3, -1) if a.joined else (ways[kind](x) for kind in ("query", "key", "value"))
        q, k, v = (in_heads(one, a.heads) for one in (q, k, v))
        y = out["dense"](attending(index, q, k, v, dropout=chance, bias=bias))
        x = out["LayerNorm"](x + (drop_some(y, chance) if chance else y))
        h = self.intermediate["dense"](x)
        if a.gated:
            h, gate = h.chunk(2, -1)
        h = F.gelu(h, approximate="tanh" if a.tanh else "none")
        y = self.output["dense"](h * gate if a.gated else h)
        return self.output["LayerNorm"](x + (drop_some(y, chance) if chance else y))


class Predictions(nn.Module):
    """The head: a layer, a norm, and the word embedding as decoder, with a bias per token."""

    def __init__(self, a: BertSpec) -> None:
        super().__init__()
        e = a.embedded
        self.transform = module_table(dense=nn.Linear(a.width, e), LayerNorm=nn.LayerNorm(e, a.eps))
        self.bias = nn.Parameter(torch.zeros(a.vocab))


class BertEncoder(PublishedEncoder):
    """The network."""

    spec: BertSpec

    def __init__(self, spec: BertSpec) -> None:
        super().__init__()
        a = self.spec = spec
        e, parts = a.embedded, {"word_embeddings": nn.Embedding(a.vocab, a.embedded)}
        if a.reach is not None:
            parts["position_embeddings"] = nn.Embedding(a.offset + a.reach, e)
        if a.segments:
            parts["token_type_embeddings"] = nn.Embedding(a.segments, e)
        self.embeddings = module_table(**parts, LayerNorm=nn.LayerNorm(e, a.eps))
        mapped = {"embedding_hidden_mapping_in": nn.Linear(e, a.width)} if a.embedding else {}
        layers = nn.ModuleList(BertLayer(a) for _ in range(1 if a.shared else a.blocks))
        self.encoder = module_table(**mapped, layer=layers)
        self.pooler = module_table(dense=nn.Linear(a.width, a.width)) if a.pooled else None
        self.cls = module_table(predictions=Predictions(a))
        self.stacked = {"Wqkv": 3, **({"intermediate": 2} if a.gated else {})}
        fresh(self)

    @property
    def copies(self) -> dict[str, str]:
        head = "cls.predictions"
        return {
            f"{head}.decoder.weight": "embeddings.word_embeddings.weight",
            f"{head}.decoder.bias": f"{head}.bias",
        }

    @property
    def idle(self) -> list[nn.Parameter]:
        return [] if self.pooler is None else list(self.pooler.parameters())

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape e"]:
        return F.embedding(tokens, self.words)

    def encode(self, x: Float[Tensor, "b l e"], p: Pass, attending: Attending) -> Float[Tensor, "b l d"]:
        a, parts = self.spec, self.embeddings
        if a.reach is not None:
            at = attending.position + a.offset
            x = x + parts.get_parameter("position_embeddings.weight")[at]
        if a.segments:
            kinds = parts.get_parameter("token_type_embeddings.weight")
            x = x + (kinds[0] if p.segments is None or a.segments < 2 else kinds[p.segments])
        x = self.drop(parts["LayerNorm"](x))
        if a.embedding:
            x = self.encoder["embedding_hidden_mapping_in"](x)
        bias = linear_biases(a.heads, x.shape[1], x.device) if a.alibi else None
        return self.through(self.units * (a.blocks if a.shared else 1), x, attending, bias)

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        head = self.cls["predictions"]
        assert isinstance(head, Predictions)
        with precision(hidden.device, self.compute):
            t = F.gelu(head.transform["dense"](hidden), approximate="tanh" if self.spec.tanh else "none")
            t = head.transform["LayerNorm"](t)
        return self.product(t, self.words, head.bias)

    def pool(self, hidden: Float[Tensor, "b l d"], lengths: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b d"]:
        """The state of the first token, [CLS], through the pooler if there is one."""
        first = hidden[:, 0]
        return first if self.pooler is None else torch.tanh(self.pooler["dense"](first))


def linear_biases(heads: int, length: int, device: torch.device) -> Float[Tensor, "1 h l l"]:
    """−m |i − j| for each head, m falling geometrically from head to head. [ALiBi]"""
    place = torch.arange(length, dtype=torch.float32, device=device)
    slopes = torch.tensor(alibi_slopes(heads), device=device)
    return -slopes[None, :, None, None] * (place[:, None] - place).abs()


def alibi_slopes(heads: int) -> list[float]:
    """2^(−8i/n), i = 1..n, for n heads; other numbers than powers of two add every second slope of the next power."""
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes if power == heads else slopes + alibi_slopes(2 * power)[0::2][: heads - power]


BertSpec.network = BertEncoder
