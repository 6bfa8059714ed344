"""Gibbs sampling with a masked language model: a position is hidden and drawn anew, given all others. [BERT-Mouth]

It begins with all blanks hidden. If the network's conditionals are those of one distribution, that distribution stays
as it is under every step. A masked language model's need not be: then the law of the samples depends on the order of
the positions, and has no likelihood that can be computed.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.times import check_total
from unmask.errors import UserError
from unmask.random import WHERE, Dice
from unmask.sampling.logits import keep_only
from unmask.sampling.policy import POLICIES, Flat, Logits, Memory, Policy, PolicyView


@POLICIES.register("gibbs", "Gibbs sampling: a random position at a time is drawn anew", scan="random")
@POLICIES.register("gibbs-sequential", "Gibbs sampling from left to right, again and again", scan="sequential")
@POLICIES.register("gibbs-parallel", "all positions drawn anew at once, again and again", scan="parallel", hide=False)
@dataclass(frozen=True)
class Gibbs(Policy):
    """A fixed number of draws. Blanks that no draw has reached by then are filled one by one from the left."""

    budget: ClassVar[str | None] = "steps"
    revises: ClassVar[bool] = True
    of_masked_lm: ClassVar[bool] = True

    steps: int = 500  # draws of a row, one network call each
    scan: Literal["random", "sequential", "parallel"] = "random"
    hide: bool = True  # hide a position before it is drawn; false: the network sees the token that it replaces
    burnin: int = 250  # draws from the whole distribution
    top_k: int = 100  # draws after them are from this many most likely tokens; 0: from all

    def __post_init__(self) -> None:
        check_total(self.steps)
        for name in ("burnin", "top_k"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must be at least 0; saw {getattr(self, name)}.")
        if self.scan == "parallel" and self.hide:
            raise UserError("a parallel scan that hides what it draws would see masks alone: set hide = false.")

    @property
    def law(self) -> str:
        cut = f", the last {self.steps - self.burnin} from the {self.top_k} most likely tokens"
        more = cut if self.top_k and self.burnin < self.steps else ""
        return f"approximate (Gibbs sampling, {self.scan} scan, {self.steps} draws{more}; depends on the scan)"

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """(draws so far (b), the last token drawn at each position (b w), −1: none)."""
        return torch.zeros(len(hidden), dtype=torch.long, device=hidden.device), torch.where(hidden, -1, -1)

    def place(self, view: PolicyView, draw: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        """The positions of a draw, among those that are free."""
        count = view.free.sum(1)
        if self.scan == "parallel":
            return view.free
        turn = draw % count.clamp(min=1)
        if self.scan == "random":
            turn = (view.dice.grid(1, WHERE, number=draw)[:, 0] * count).long()
        return view.free & (view.free.long().cumsum(1) - 1 == turn[:, None])

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        draw = view.memory[0]
        now = self.place(view, draw) & view.hidden & (draw < self.steps)[:, None]
        first = view.hidden & (view.hidden.long().cumsum(1) == 1)
        where = torch.where(now.any(1, keepdim=True), now, first)
        return where, torch.zeros(len(where), device=where.device)

    def shown(self, view: PolicyView) -> Int[Tensor, "b w"]:
        last = view.memory[1]
        return view.tokens if self.hide else torch.where(view.hidden & (last >= 0), last, view.tokens)

    def tilt(self, view: PolicyView, rows: Flat, logits: Logits) -> Logits:
        late = view.memory[0][rows // view.hidden.shape[1]] >= self.burnin
        if not self.top_k or self.top_k >= logits.shape[-1] or not bool(late.any()):
            return logits
        return torch.where(late[:, None], keep_only(logits, logits.topk(self.top_k, -1).indices), logits)

    def revise(self, view: PolicyView, rows: Flat, log_probs: Tensor) -> tuple[Bool[Tensor, "b w"], Memory]:
        draw = view.memory[0] + 1
        again = self.place(view, draw) & ~view.hidden & (draw < self.steps)[:, None]
        return again, (draw, torch.where(view.hidden, view.memory[1], view.tokens))
