"""What BERT and its relatives share: the frame around a text, and pooling.

They see both sides, take no noise level, and were trained with a first and a last special token around each text.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.attending import Attending, attend_in
from unmask.model.backbone import Backbone, Spec, precision
from unmask.model.backbones.block import drop_some
from unmask.model.backbones.layers import check_reach
from unmask.model.passing import ATTENTION, Abilities, Pass, States
from unmask.text.tokens.export import Inputs


class EncoderSpec(Spec):
    """The shape of an encoder. A subclass is a frozen dataclass."""

    framed: ClassVar[bool] = True
    heads: int
    blocks: int

    @property
    def abilities(self) -> Abilities:
        return Abilities(ATTENTION, memory=True, positions=True)

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
        self.check_sizes("heads", *names)
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
                f"(--length {self.reach})."
            )


class Encoder(Backbone):
    """An encoder: a subclass has `embed`, `encode` and `head`."""

    spec: EncoderSpec

    @abstractmethod
    def encode(self, x: Float[Tensor, "b l e"], p: Pass, attending: Attending) -> Float[Tensor, "b l d"]:
        """Hidden states of embedded tokens."""

    def forward(self, p: Pass) -> States:
        check_reach(p, self.spec.reach, self.spec.name)
        attending = attend_in(p)
        with precision(p.x.device, self.compute):
            x = p.x if p.x.is_floating_point() else self.embed(p.x)
            return attending.states(self.encode(x, p, attending))

    def through(
        self, layers: Sequence[nn.Module], x: Float[Tensor, "b l d"], *given: object
    ) -> Float[Tensor, "b l d"]:
        """The layers, one after the other, each with its number."""
        for i, layer in enumerate(layers):
            x = self.run_layer(layer, x, i, *given)
        return x

    def drop(self, y: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
        return drop_some(y, self.spec.dropout) if self.training and self.spec.dropout else y

    def pool(self, hidden: Float[Tensor, "b l d"], lengths: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b d"]:
        """The state of the first token, [CLS]."""
        return hidden[:, 0]


class PublishedEncoder(Encoder):
    """An encoder whose parameters have the names of BERT's checkpoints."""

    embeddings: nn.ModuleDict
    encoder: nn.ModuleDict

    @property
    def units(self) -> list[nn.Module]:
        layers = self.encoder["layer"]
        assert isinstance(layers, nn.ModuleList)
        return list(layers)

    @property
    def words(self) -> nn.Parameter:
        weight = self.embeddings["word_embeddings"].weight
        assert isinstance(weight, nn.Parameter)
        return weight
