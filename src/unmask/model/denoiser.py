"""Denoiser: a backbone with the learned parts of its objective; one module, trained and saved as a whole.

Its forward pass is the objective's `nats`, so that DDP and FSDP see the whole computation of a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.diffusion.objective import Nats, Objective
from unmask.model.backbone import Backbone
from unmask.random import Noise


@dataclass
class NetworkView:
    """A network as an objective calls it, with the lengths of rows, the attention rule and the carried memory."""

    module: Backbone
    lengths: Int[Tensor, " b"] | None = None
    allowed: Bool[Tensor, "l l"] | None = None
    memory: Tensor | None = None  # from the previous step
    carried: list[Tensor] = field(default_factory=list)  # for the next step

    def __call__(
        self, x: Tensor, sigma: Float[Tensor, "..."], rows: Int[Tensor, " n"], **blocks: Any
    ) -> Float[Tensor, "n v"]:
        x = x if self.unseen is None else x.masked_fill(self.unseen, self.mask)
        if self.module.spec.carries:
            logits, memory = self.module.carried(x, sigma, rows, self.memory)
            self.carried.append(memory.detach())
            return logits
        return self.module(x, sigma, rows, lengths=self.lengths, allowed=self.allowed, **blocks)

    def trunk(
        self,
        x: Float[Tensor, "b l d"],
        *,
        rows: Int[Tensor, " n"] | None = None,
        lengths: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Hidden states from vectors, which contain the noise level; `lengths` replace the rows' own."""
        lengths = self.lengths if lengths is None else lengths
        return self.module.trunk(x, x.new_zeros(len(x)), rows=rows, lengths=lengths, allowed=self.allowed)

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        return self.module.head(hidden)

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        return self.module.embed(tokens)

    def some(self, index: Int[Tensor, " k"]) -> "NetworkView":
        """The network for some of the rows."""
        return replace(self, lengths=None if self.lengths is None else self.lengths[index])


class Denoiser(nn.Module):
    """A backbone, and the parts and the state of an objective."""

    def __init__(
        self,
        backbone: Backbone,
        objective: Objective,
        *,
        parts: Mapping[str, nn.Module] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.objective = backbone, objective
        if parts is None:
            parts = objective.parts(vocab=backbone.spec.vocab, width=backbone.spec.width)
        self.parts = nn.ModuleDict(dict(parts))
        self.state: dict[str, Tensor] = dict(objective.state() if state is None else state)

    @property
    def units(self) -> list[nn.Module]:
        return self.backbone.units

    def forward(
        self,
        x0: Int[Tensor, "b l"],
        noise: Noise,
        *,
        mask: int,
        objective: Objective | None = None,
        frozen: Bool[Tensor, "b l"] | None = None,
        lengths: Int[Tensor, " b"] | None = None,
        allowed: Bool[Tensor, "l l"] | None = None,
        memory: Tensor | None = None,
    ) -> tuple[Nats, Tensor | None]:
        """Loss and bound of clean rows, and the memory for the next step; `objective` replaces the denoiser's own."""
        look = NetworkView(self.backbone, lengths, allowed, memory)
        chosen = self.objective if objective is None else objective
        nats = chosen.nats(
            look, x0, noise=noise, mask=mask, frozen=frozen, parts=dict(self.parts.items()), state=self.state
        )
        return nats, look.carried[0] if look.carried else None

    def advance(self, seen: Mapping[str, Tensor]) -> None:
        """Update the objective's state after a step."""
        self.state = self.objective.advance(self.state, seen)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of a weights file by name: `backbone.`, `parts.` and `state.`."""
        return {**self.state_dict(), **{f"state.{name}": value for name, value in self.state.items()}}
