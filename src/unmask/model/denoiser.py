"""Denoiser: a backbone with the learned parts of its objective; one module, trained and saved as a whole.

Its forward pass is the objective's `nats`, so that DDP and FSDP see the whole computation of a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import Nats, Objective
from unmask.errors import UserError
from unmask.model.backbone import Backbone
from unmask.model.learner import Learner
from unmask.model.passes.segments import segment
from unmask.model.passes.whole import hidden_states, logits_at
from unmask.model.passing import Segment, VisibleKeys
from unmask.random import Noise


@dataclass
class NetworkView:
    """A network as an objective calls it, with the lengths of rows, the attention rule and the carried memory."""

    module: Backbone
    lengths: Int[Tensor, " b"] | None = None
    allowed: Bool[Tensor, "l l"] | None = None
    memory: Tensor | None = None  # from the previous step
    unseen: Bool[Tensor, " l"] | None = None  # positions of which the network must learn nothing
    mask: int = 0  # the token that it sees there
    carried: list[Tensor] = field(default_factory=list)  # for the next step

    def __call__(
        self,
        x: Tensor,
        sigma: Float[Tensor, "..."],
        rows: Int[Tensor, " n"],
        *,
        clean: Int[Tensor, "b l"] | None = None,
        size: int = 0,
        opens: bool = False,
        rank: Int[Tensor, "b l"] | None = None,
    ) -> Float[Tensor, "n v"]:
        """The logits; `clean` with `size` for networks that look block by block, with `rank` for any order."""
        if self.unseen is not None:
            x = x.masked_fill(self.unseen, self.mask)
            clean = None if clean is None else clean.masked_fill(self.unseen, self.mask)
        if self.module.spec.carries:
            states = self.module.run(segment(x, rows, self.memory))
            assert isinstance(states.memory, Segment)
            assert states.memory.states is not None
            self.carried.append(states.memory.states.detach())
            return self.module.head(states.hidden)
        how = {"lengths": self.lengths, "allowed": self.allowed, "clean": clean, "rank": rank}
        return logits_at(self.module, x, sigma, rows, size=size, opens=opens, **how)

    def trunk(
        self,
        x: Float[Tensor, "b l d"],
        *,
        rows: Int[Tensor, " n"] | None = None,
        lengths: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Hidden states from vectors, which contain the noise level; `lengths` replace the rows' own."""
        lengths = self.lengths if lengths is None else lengths
        sigma = x.new_zeros(len(x))
        return hidden_states(self.module, x, sigma, rows=rows, lengths=lengths, allowed=self.allowed)

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]:
        return self.module.head(hidden)

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        return self.module.embed(tokens)

    def some(self, index: Int[Tensor, " k"]) -> "NetworkView":
        return replace(self, lengths=None if self.lengths is None else self.lengths[index])


class Denoiser(Learner):
    """A backbone, and the parts and the state of an objective."""

    def __init__(
        self,
        backbone: Backbone,
        objective: Objective,
        *,
        parts: Mapping[str, nn.Module] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        check_vectors(backbone, objective)
        check_visible_keys(backbone, objective)
        if parts is None:
            parts = objective.parts(vocab=backbone.spec.vocab, width=backbone.spec.width)
        super().__init__(backbone, parts)
        self.objective = objective
        self.state = dict(objective.state() if state is None else state)

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
        clean = CleanRows(x0, noise, mask=mask, frozen=frozen, parts=dict(self.parts.items()), state=self.state)
        nats = chosen.nats(look, clean)
        return self.touched(nats), look.carried[0] if look.carried else None

    def touched(self, nats: Nats) -> Nats:
        """The same numbers, with a gradient of 0 for a half of the network that is not used: DDP waits for it."""
        unused, backbone = self.objective.facts.unused, self.backbone
        if not unused or not torch.is_grad_enabled():
            return nats
        vectors = backbone.embed(torch.zeros(1, dtype=torch.long, device=nats.loss.device))
        idle = 0.0 * vectors.sum() if "embedding" in unused else vectors.new_zeros(())
        if "head" in unused:
            idle = idle + 0.0 * backbone.head(torch.zeros_like(vectors)).sum()
        return nats._replace(loss=nats.loss + idle)

    def advance(self, seen: Mapping[str, Tensor]) -> None:
        self.state = self.objective.advance(self.state, seen)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of a weights file by name: `backbone.`, `parts.` and `state.`."""
        return {**self.state_dict(), **{f"state.{name}": value for name, value in self.state.items()}}


def check_visible_keys(backbone: Backbone, objective: Objective) -> None:
    """Refuse a network that hides masks from each other, where the objective says itself who sees whom."""
    if isinstance(backbone.spec.own_rule, VisibleKeys) and (objective.facts.remembers or objective.facts.vectors):
        raise UserError(
            f"model.visible_keys is for objectives that read a row with masks once, such as mdlm; {objective.name} "
            "does not. Leave visible_keys out."
        )


def check_vectors(backbone: Backbone, objective: Objective) -> None:
    """Refuse a network that cannot be given vectors in place of tokens, if the objective needs it."""
    if not objective.facts.vectors:
        return
    spec = backbone.spec
    if spec.carries:
        raise UserError(
            f"the objective {objective.name} gives the network vectors, and the backbone {spec.name!r} carries a "
            "memory of tokens: choose another backbone, such as transformer."
        )
    width = backbone.embed(torch.zeros(1, dtype=torch.long, device=backbone.device)).shape[-1]
    if width != spec.width:
        raise UserError(
            f"the objective {objective.name} makes vectors of width {spec.width}, and this {spec.name} needs "
            f"{width} numbers per position (two strands): leave equivariant out."
        )
