"""Remasking: a drawn token may be hidden again and drawn anew, so that mistakes can be corrected. [ReMDM]

One family with one number σ per step, from α_t visible to α_s:

    visible:  hidden again with probability σ,                     0 ≤ σ ≤ min(1, (1 − α_s)/α_t)
    hidden:   revealed with probability (α_s − (1 − σ) α_t)/(1 − α_t)

The hidden share follows the schedule for every σ: (1 − α_t)·(1 − that) + α_t σ = 1 − α_s. The rules differ in σ. The
positions do not depend on the network (except for `conf`, on its earlier probabilities), so steps that reveal nothing
take no call: T steps take at most T calls.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.schedule import LogLinear, Schedule, shown_sigma
from unmask.diffusion.times import check_total, grid
from unmask.errors import UserError, unknown
from unmask.random import HIDE, WHERE, Dice
from unmask.registry import derived
from unmask.sampling.policy import POLICIES, Flat, Memory, Policy, PolicyView

# Default η of each rule: its authors' choice where there is one.
RULES = {"cap": 0.008, "rescale": 0.015, "conf": 0.015, "loop": 0.02, "forward-backward": 1.0}


def most_hidden_again(alpha_s: Float[Tensor, "*n"], alpha_t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """σ_max = min(1, (1 − α_s)/α_t). [ReMDM]"""
    return ((1 - alpha_s) / alpha_t.clamp(min=1e-12)).clamp(max=1)


def reveal_chance_remasking(
    alpha_s: Float[Tensor, "*n"], alpha_t: Float[Tensor, "*n"], sigma: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """(α_s − (1 − σ) α_t)/(1 − α_t): the probability that a hidden position is revealed. [ReMDM]"""
    return ((alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t).clamp(min=1e-12)).clamp(0, 1)


@POLICIES.register("remask-cap", "tokens are hidden again at a small constant rate", rule="cap")
@POLICIES.register("remask-rescale", "hidden again at a share of the largest rate", rule="rescale")
@POLICIES.register("remask-conf", "as many as rescale, unlikely tokens preferred", rule="conf")
@POLICIES.register("remask-loop", "a phase of remasking when most tokens are drawn", rule="loop")
@POLICIES.register("remask-forward-backward", "as many hidden again as a step reveals", rule="forward-backward")
@dataclass(frozen=True)
class Remask(Policy):
    """T steps in which tokens are revealed and hidden again; the last step reveals all that is left.

    cap               σ = min(η, σ_max)
    rescale           σ = η σ_max
    conf              as many as rescale hides, but those that were least likely when they were drawn
    loop              no remasking up to α_on visible, then σ = η at that level for some steps, then none to the end
    forward-backward  σ = η (α_s − α_t)/α_t, at most σ_max: with η = 1 a step forward, then one back
    """

    budget: ClassVar[str | None] = "steps"
    revises: ClassVar[bool] = True

    rule: str = "rescale"
    steps: int = 128  # T, the number of steps, at most one network call per step
    eta: float | None = None  # η, the strength of remasking; None: the rule's default
    schedule: Schedule = derived(LogLinear())  # α_t
    held: float = 0.9  # α_on, the visible share during the loop
    begin: float = 0.55  # t at which the loop begins
    end: float = 0.05  # t at which the loop ends

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise unknown("remasking rule", self.rule, RULES)
        check_total(self.steps)
        if self.eta is not None and not 0 <= self.eta <= 1:
            raise UserError(f"the strength η of remasking must lie in 0..1; saw {self.eta}.")
        if not (0 <= self.end < self.begin <= 1 and 0 < self.held < 1):
            raise UserError(
                f"a loop needs 0 <= end < begin <= 1 and a held share within (0, 1); saw end {self.end}, "
                f"begin {self.begin}, held {self.held}."
            )

    @property
    def law(self) -> str:
        if self.rule == "conf":
            return f"approximate (grid-{self.steps}, unlikely tokens hidden again)"
        return f"grid-{self.steps}, remasking by {self.rule}"

    def path(self) -> tuple[Float[Tensor, " edges"], Float[Tensor, " steps"]]:
        """The visible share α before each step and after the last, and σ of each step."""
        t = grid(self.steps)
        alpha = self.visible(t)
        alpha_t, alpha_s = alpha[:-1], alpha[1:]
        eta = RULES[self.rule] if self.eta is None else self.eta
        most = most_hidden_again(alpha_s, alpha_t)
        if self.rule == "cap":
            sigma = most.clamp(max=eta)
        elif self.rule == "loop":
            still = (alpha_s == alpha_t) & (alpha_t > 0)
            sigma = torch.where(still, most.clamp(max=eta), 0.0)
        elif self.rule == "forward-backward":
            sigma = torch.minimum(eta * (alpha_s - alpha_t) / alpha_t.clamp(min=1e-12), most)
        else:
            sigma = eta * most
        return alpha, torch.where(alpha_t > 0, sigma, 0.0)

    def visible(self, t: Float[Tensor, " edges"]) -> Float[Tensor, " edges"]:
        """α along the path, from 0 (all hidden) to 1. The loop rises to `held`, stays there, and rises to 1."""
        hidden = self.schedule.at(t).hidden
        alpha = 1 - hidden / hidden[0]
        if self.rule == "loop":
            up = self.held * (1 - t) / max(1 - self.begin, 1e-12)
            down = 1 - (1 - self.held) * t / max(self.end, 1e-12)
            alpha = torch.where(t > self.begin, up, torch.where(t > self.end, self.held, down)).clamp(0, 1)
        alpha[0], alpha[-1] = 0.0, 1.0
        return alpha

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """(step (b), what it reveals (b w), log-probability of each token when it was drawn (b w))."""
        step = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
        nothing = torch.zeros_like(hidden)
        written = torch.zeros(hidden.shape, dtype=torch.float64, device=hidden.device)
        step, reveals, _ = self.ahead(step, hidden, nothing, written, dice)
        return step, reveals, written

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        step, reveals, _ = view.memory
        alpha = self.path()[0].to(step.device)
        share = 1 - alpha[step.clamp(max=self.steps - 1)]
        return reveals & view.hidden, shown_sigma(self.schedule, share).float()

    def revise(self, view: PolicyView, rows: Flat, log_probs: Tensor) -> tuple[Bool[Tensor, "b w"], Memory]:
        """Finish a step after its tokens are drawn: what it hides again, and the next step that reveals something."""
        step, _, written = view.memory
        fresh = torch.zeros_like(view.hidden).flatten().index_fill(0, rows, True).view_as(view.hidden)
        # In one step a position is either revealed or hidden: new tokens stay.
        before = view.free & ~view.hidden & ~fresh
        again = self.hides(step, before, written, view.dice)
        written = written.flatten().index_copy(0, rows, log_probs.double()).view_as(written)
        hidden = (view.hidden | again) & view.free
        step, reveals, more = self.ahead(step + 1, hidden, view.free & ~hidden, written, view.dice)
        return again | more, (step, reveals, written)

    def ahead(
        self,
        step: Int[Tensor, " b"],
        hidden: Bool[Tensor, "b w"],
        shown: Bool[Tensor, "b w"],
        written: Float[Tensor, "b w"],
        dice: Dice,
    ) -> tuple[Int[Tensor, " b"], Bool[Tensor, "b w"], Bool[Tensor, "b w"]]:
        """Advance each row to the next step that reveals something: the step, what it reveals, what is hidden again.

        hidden   what is hidden before `step`
        shown    what was drawn and is visible
        """
        again = torch.zeros_like(hidden)
        while True:
            reveals = self.reveals(step, hidden, dice)
            idle = ~reveals.any(1) & (step < self.steps)
            if not bool(idle.any()):
                return step, reveals, again
            more = self.hides(step, shown, written, dice) & idle[:, None]
            hidden, shown, again = hidden | more, shown & ~more, again | more
            step = step + idle.long()

    def reveals(self, step: Int[Tensor, " b"], hidden: Bool[Tensor, "b w"], dice: Dice) -> Bool[Tensor, "b w"]:
        alpha, sigma = (values.to(step.device) for values in self.path())
        now = step.clamp(max=self.steps - 1)
        chance = reveal_chance_remasking(alpha[now + 1], alpha[now], sigma[now])
        return hidden & (dice.grid(hidden.shape[1], WHERE, number=step) < chance[:, None])

    def hides(
        self, step: Int[Tensor, " b"], shown: Bool[Tensor, "b w"], written: Float[Tensor, "b w"], dice: Dice
    ) -> Bool[Tensor, "b w"]:
        sigma = self.path()[1].to(step.device)[step.clamp(max=self.steps - 1)]
        drawn = shown & (dice.grid(shown.shape[1], HIDE, number=step) < sigma[:, None])
        if self.rule != "conf":
            return drawn
        # As many, but chosen with weights e^{−c}, c the probability when written: the greatest −c + Gumbel noise.
        u = dice.grid(shown.shape[1], HIDE, number=step + self.steps).clamp(min=1e-300)
        score = torch.where(shown, -written.exp() - torch.log(-torch.log(u)), -torch.inf)
        rank = score.argsort(1, descending=True).argsort(1)
        return shown & (rank < drawn.sum(1, keepdim=True))
