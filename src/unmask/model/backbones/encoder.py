"""What BERT and its relatives share: rotary positions, the frame around a text, and pooling.

They see both sides, take no noise level, and were trained with a first and a last special token around each text.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.errors import UserError
from unmask.model.attending import Attending, attend_in
from unmask.model.backbone import Backbone, Spec, precision
from unmask.model.backbones.block import dropped
from unmask.model.passing import ATTENTION, Abilities, Pass, States
from unmask.text.tokens.export import Inputs

STD = 0.02  # of fresh weights


class EncoderSpec(Spec):
    """The shape of an encoder. A subclass is a frozen dataclass."""

    heads: int
    blocks: int

    @property
    def abilities(self) -> Abilities:
        return Abilities(ATTENTION, memory=True, positions=True)

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
    def encode(self, x: Float[Tensor, "b l e"], p: Pass, attending: Attending) -> Float[Tensor, "b l d"]:
        """Hidden states of embedded tokens."""

    def forward(self, p: Pass) -> States:
        reach, highest = self.spec.reach, p.start + p.x.shape[1] if p.position is None else int(p.position.max()) + 1
        if reach is not None and highest > reach:
            raise UserError(
                f"a row has {highest} tokens, and this {self.spec.name} has {reach} positions: use shorter rows, or "
                f"a window (--window {reach})."
            )
        attending = attend_in(p)
        with precision(p.x.device, self.compute):
            x = p.x if p.x.is_floating_point() else self.embed(p.x)
            return attending.states(self.encode(x, p, attending))

    def through(
        self, layers: Sequence[nn.Module], x: Float[Tensor, "b l d"], *given: object
    ) -> Float[Tensor, "b l d"]:
        """The layers, one after the other, each with its number."""
        again = self.recompute and torch.is_grad_enabled()
        for i, layer in enumerate(layers):
            x = checkpoint(layer, x, i, *given, use_reentrant=False) if again else layer(x, i, *given)
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


def in_heads(x: Float[Tensor, "b l d"], heads: int) -> Float[Tensor, "b l h e"]:
    return x.unflatten(-1, (heads, -1))


def turns_of(position: Int[Tensor, "*b l"], features: int, theta: float) -> Float[Tensor, "2 *b l 1 e"]:
    """Cosine and sine of position p, pair i: the angle p · θ^(−2i/e), once for each half of a head's features."""
    pair = torch.arange(0, features, 2, dtype=torch.float32, device=position.device) / features
    angles = position.float()[..., None, None] / theta**pair
    return torch.stack((angles.cos(), angles.sin())).repeat(*(1,) * (position.dim() + 2), 2)


def turned(x: Float[Tensor, "b l h e"], turns: Float[Tensor, "2 *b l 1 e"]) -> Float[Tensor, "b l h e"]:
    """Rotate the pairs (i, e/2 + i) of features by the angles of their positions."""
    cos, sin = turns
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)
