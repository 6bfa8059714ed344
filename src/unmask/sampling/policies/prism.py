"""PRISM: tokens that the network takes for wrong are hidden again, and drawn anew with what is known by then."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.schedule import LogLinear, Schedule, shown_sigma
from unmask.diffusion.times import check_total
from unmask.random import ORDER, Dice
from unmask.registry import derived
from unmask.sampling.policies.planned import ranks
from unmask.sampling.policy import POLICIES, Draw, Memory, Policy, PolicyView
from unmask.settings import check_shares


@POLICIES.register("prism", "tokens of low quality are hidden again, for models of the objective prism")
@dataclass(frozen=True)
class Prism(Policy):
    """T calls, each of which reveals tokens in random order and asks for the quality of those that were drawn."""

    needs: ClassVar[frozenset[str]] = frozenset({"masks", "quality"})
    budget: ClassVar[str | None] = "steps"
    revises: ClassVar[bool] = True
    unshaped: ClassVar[bool] = True

    steps: int = 64  # T, the number of network calls
    tau: float = 0.5  # a token whose probability of being right is lower may be hidden again
    most: float = 0.1  # share of the drawn tokens that a call hides again at most
    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    def __post_init__(self) -> None:
        check_total(self.steps)
        check_shares(tau=self.tau, most=self.most)

    @property
    def law(self) -> str:
        return f"approximate ({self.steps} calls, tokens of quality below {self.tau:g} hidden again)"

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """(turn of each position (b w), quality of its token (b w))."""
        turn = ranks(hidden, dice.grid(hidden.shape[1], ORDER))
        return turn, torch.ones(hidden.shape, dtype=torch.float64, device=hidden.device)

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        free, shown = view.free.sum(1), (view.free & ~view.hidden).sum(1)
        goal = (free * (view.clock + 1).clamp(max=self.steps) / self.steps).ceil().long()
        turn = torch.where(view.hidden, view.memory[0], view.hidden.shape[1] + 1)
        now = view.hidden & (turn.argsort(1).argsort(1) < (goal - shown).clamp(min=1)[:, None])
        share = view.hidden.sum(1) / free.clamp(min=1)
        return now | (view.free & ~view.hidden), shown_sigma(self.schedule, share).float()

    def choose(
        self, view: PolicyView, rows: Int[Tensor, " n"], logits: Float[Tensor, "n v"], draw: Draw
    ) -> tuple[Bool[Tensor, " n"], Memory]:
        blank = view.hidden.flatten()[rows]
        turn, quality = view.memory
        known = logits[~blank, view.mask].double().sigmoid()
        return blank, (turn, quality.flatten().index_copy(0, rows[~blank], known).view_as(quality))

    def revise(
        self, view: PolicyView, rows: Int[Tensor, " n"], log_probs: Float[Tensor, " n"]
    ) -> tuple[Bool[Tensor, "b w"], Memory]:
        """Hide the worst of the tokens that were there before this call; the last call hides none."""
        quality = view.memory[1]
        fresh = torch.zeros_like(view.hidden).flatten().index_fill(0, rows, True).view_as(view.hidden)
        before = view.free & ~view.hidden & ~fresh & (view.clock + 1 < self.steps)[:, None]
        rank = torch.where(before, quality, torch.inf).argsort(1).argsort(1)
        many = (self.most * before.sum(1)).ceil()
        return before & (quality < self.tau) & (rank < many[:, None]), view.memory
