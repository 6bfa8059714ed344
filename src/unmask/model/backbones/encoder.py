"""What BERT and its relatives share: who sees whom, rotary positions, the frame around a text, and pooling.

They see both sides, take no noise level, and were trained with a first and a last special token around each text.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.errors import UserError
from unmask.model.backbone import Backbone, Spec, precision
from unmask.model.backbones.block import dropped
from unmask.text.tokens.export import Inputs

STD = 0.02  # of fresh weights


class EncoderSpec(Spec):
    """The shape of an encoder. A subclass is a frozen dataclass."""

    heads: int
    blocks: int

    @property
    def framed(self) -> bool:
        return True

    @property
    def inputs(self) -> Inputs:
        return Inputs(self.reach)

    @property
    def limit(self) -> int | None:
        return self.reach

    @property
    def reach(self) -> int | None:
        """The most positions of a row; None: any number."""
        return None

    def check(self, *names: str) -> None:
        for name in ("vocab", "length", "width", "blocks", "heads", *names):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be in [0, 1), not {self.dropout}.")
        if self.width % self.heads:
            raise UserError(
                f"width {self.width} cannot be split into {self.heads} heads: make it a multiple, or change heads."
            )
        if self.causal:
            raise UserError(
                f"the backbone {self.name!r} sees both sides, so it cannot be autoregressive: choose the objective "
                "mdlm, or another backbone."
            )
        if self.reach is not None and self.reach < self.length:
            raise UserError(
                f"the network has {self.reach} positions, and a row has {self.length}: shorten the rows "
                f"(--text.length {self.reach})."
            )


class Encoder(Backbone):
    """An encoder: a subclass has `embed`, `encode` and `head`."""

    spec: EncoderSpec

    @abstractmethod
    def encode(
        self,
        x: Float[Tensor, "b l e"],
        real: Bool[Tensor, "b l"] | None,
        allowed: Bool[Tensor, "l l"] | None,
    ) -> Float[Tensor, "b l d"]:
        """Hidden states of embedded tokens, of which some may be padding; `allowed`: who may see whom."""

    def trunk(
        self,
        x: Int[Tensor, "b l"] | Float[Tensor, "b l e"],
        sigma: Float[Tensor, "..."] | None = None,
        *,
        rows: Int[Tensor, " n"] | None = None,
        lengths: Int[Tensor, " b"] | None = None,
        allowed: Bool[Tensor, "l l"] | None = None,
    ) -> Float[Tensor, "b l d"] | Float[Tensor, "n d"]:
        l, reach = x.shape[1], self.spec.reach
        if reach is not None and l > reach:
            raise UserError(
                f"a row has {l} tokens, and this {self.spec.name} has {reach} positions: use shorter rows, or a "
                f"window (--window {reach})."
            )
        x = x if x.is_floating_point() else self.embed(x)
        real = None
        if lengths is not None and bool((lengths < l).any()):
            real = torch.arange(l, device=x.device) < lengths[:, None]
        with precision(x.device, self.compute):
            hidden = self.encode(x, real, allowed)
        return hidden if rows is None else hidden.flatten(0, 1).index_select(0, rows)

    def through(
        self, layers: Sequence[nn.Module], x: Float[Tensor, "b l d"], *given: object
    ) -> Float[Tensor, "b l d"]:
        """The layers, one after the other."""
        again = self.recompute and torch.is_grad_enabled()
        for layer in layers:
            x = checkpoint(layer, x, *given, use_reentrant=False) if again else layer(x, *given)
        return x

    def drop(self, y: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
        return dropped(y, self.spec.dropout) if self.training and self.spec.dropout else y

    def pool(self, hidden: Float[Tensor, "b l d"], lengths: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b d"]:
        """The state of the first token, [CLS]."""
        return hidden[:, 0]


def fresh(network: nn.Module) -> None:
    """Initial weights: N(0, 0.02) for matrices, 0 for biases."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def seen(real: Bool[Tensor, "b l"] | None, allowed: Bool[Tensor, "l l"] | None) -> Bool[Tensor, "..."] | None:
    """Who sees whom, broadcast over (b h l l); None: everybody everything."""
    if real is None:
        return allowed
    keys = real[:, None, None]
    return keys if allowed is None else keys & allowed


def attended(
    q: Float[Tensor, "b l d"],
    k: Float[Tensor, "b l d"],
    v: Float[Tensor, "b l d"],
    *,
    heads: int,
    visible: Tensor | None = None,
    turns: Float[Tensor, "2 l e"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b l d"]:
    """softmax(q kᵀ/√e) v of each head; `visible` is a rule, or numbers added to the products of q and k."""
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (q, k, v))
    if turns is not None:
        q, k = turned(q, turns), turned(k, turns)
    if visible is not None and visible.is_floating_point():
        visible = visible.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout).transpose(1, 2).flatten(2)


def turns_of(length: int, features: int, theta: float, device: torch.device) -> Float[Tensor, "2 l e"]:
    """Cosine and sine of position p, pair i: the angle p · θ^(−2i/e), once for each half of a head's features."""
    pair = torch.arange(0, features, 2, dtype=torch.float32, device=device) / features
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] / theta**pair
    return torch.stack((angles.cos(), angles.sin())).repeat(1, 1, 2)


def turned(x: Float[Tensor, "b h l e"], turns: Float[Tensor, "2 l e"]) -> Float[Tensor, "b h l e"]:
    """Rotate the pairs (i, e/2 + i) of features by the angles of their positions."""
    cos, sin = turns
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)
