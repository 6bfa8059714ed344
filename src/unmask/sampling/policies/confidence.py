"""Orders chosen by the model: reveal the most certain positions first.

"Choose, then draw" picks positions by their whole distributions and then draws their tokens: with one token per call
this keeps the model's own conditionals. The popular "draw, then keep" draws everywhere and keeps the most likely
of the drawn tokens; this favours likely tokens twice and is not a sample of the model.

Positions with equal scores are revealed from left to right (`diffusion.certainty.ranking`). The estimator `duel` uses
the same rule, so it gives the exact likelihood of these samplers.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.certainty import CERTAINTY, even_share, surest
from unmask.diffusion.rows import forbid
from unmask.diffusion.schedule import LogLinear, Schedule, shown_sigma
from unmask.diffusion.times import check_total
from unmask.errors import UserError, unknown
from unmask.random import Dice
from unmask.registry import derived
from unmask.sampling.policy import POLICIES, Chosen, Draw, Flat, Logits, Memory, Policy, PolicyView


def score_table(
    values: Float[Tensor, " n"], rows: Int[Tensor, " n"], hidden: Bool[Tensor, "b w"]
) -> Float[Tensor, "b w"]:
    """Values at their flat positions, −∞ elsewhere. NaN means that no token is possible there, and is refused."""
    if bool(values.isnan().any()):
        raise UserError("no token is possible at a position: all are banned, or the network gave NaN.")
    return values.new_full((hidden.numel(),), -torch.inf).index_copy(0, rows, values).view_as(hidden)


@runtime_checkable
class Looking(Policy, Protocol):
    """A policy that needs the logits of every blank before it chooses; a subclass chooses."""

    surest_first: ClassVar[bool] = True

    schedule: Schedule  # matters only to networks with time conditioning

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """The number of blanks at the start."""
        return (hidden.sum(1).clamp(min=1),)

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        """Every blank, at the noise level of the share still hidden."""
        return view.hidden, shown_sigma(self.schedule, view.hidden.sum(1).double() / view.memory[0]).float()


def first_blank(hidden: Bool[Tensor, "b w"]) -> Int[Tensor, " b"]:
    """The first blank of each row; 0 where there is none."""
    return hidden.long().argmax(1)


def per_call(view: PolicyView, calls: int | None) -> Int[Tensor, " b"]:
    """The number of tokens to reveal now, so that `calls` calls are enough; without a budget one per call."""
    left = view.hidden.sum(1)
    if calls is None:
        return torch.ones_like(left)
    return even_share(left, (calls - view.clock).clamp(min=1))


@POLICIES.register("confidence", "the most confident positions first", by="confidence", draw_first=False)
@POLICIES.register("margin", "positions with the largest probability margin first", by="margin", draw_first=False)
@POLICIES.register("entropy", "positions of lowest entropy first", by="entropy", draw_first=False)
@POLICIES.register("draw-then-keep", "draw everywhere, keep the likeliest: biased", by="confidence", draw_first=True)
@dataclass(frozen=True)
class Ordered(Looking):
    """The most certain positions first: by confidence, margin or entropy. [MaskGIT, Kim et al. 2025, Dream]"""

    budget: ClassVar[str | None] = "calls"

    by: str = "entropy"  # confidence | margin | entropy
    calls: int | None = None  # number of network calls; None: as many as are needed
    each: int = 1  # tokens per call, where there is no number of calls
    draw_first: bool = False  # draw everywhere, keep the likeliest tokens: biased, here for comparison [LLaDA]
    falls: float | None = None  # Dream's numbers: t falls evenly from 1 to this, ⌊blanks · (1 − s/t)⌋ in each call
    part: int = 0  # tokens, from the first blank on, that are filled before the next ones; 0: all [LLaDA's blocks]
    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    def __post_init__(self) -> None:
        if self.by not in CERTAINTY:
            raise unknown("order", self.by, CERTAINTY)
        check_total(self.calls)
        check_total(self.each)
        if self.falls is not None and (self.calls is None or not 0 <= self.falls < 1):
            raise UserError(f"falls must lie in [0, 1), with a number of calls; saw {self.falls} and {self.calls}.")
        if self.part < 0 or (self.part and self.falls is not None):
            raise UserError(f"a part has a number of tokens from 1, without falls; saw {self.part} and {self.falls}.")

    @property
    def law(self) -> str:
        if self.draw_first:
            return "approximate (biased: what is drawn decides what is kept)"
        if self.calls is None and self.each == 1:
            return "approximate (most certain token first)"
        return "approximate (most certain tokens first, several per forward pass)"

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """The blanks at the start; with parts, also the first of them and the number of parts; with falls, a step."""
        begun = super().plan(hidden, dice)
        if self.falls is not None:
            return (*begun, torch.zeros_like(begun[0]))
        if not self.part:
            return begun
        first, last = first_blank(hidden), hidden.shape[1] - 1 - first_blank(hidden.flip(1))
        return (*begun, first, (last - first).clamp(min=0) // self.part + 1)

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        return self.narrow(view).hidden, super().wants(view)[1]

    def narrow(self, view: PolicyView) -> PolicyView:
        """The part that is filled now, with a clock of its own: every part has an equal share of the calls."""
        if not self.part:
            return view
        _, first, parts = view.memory
        now = (first_blank(view.hidden) - first) // self.part
        place = torch.arange(view.hidden.shape[1], device=now.device)
        there = (place - first[:, None]) // self.part == now[:, None]
        calls = self.calls or 0
        clock = view.clock + calls - (now + 1) * (calls // parts).clamp(min=1)
        return replace(view, hidden=view.hidden & there, clock=clock)

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        log_p = forbid(logits, view.mask).log_softmax(-1)
        score = log_p.gather(-1, draw()[:, None]).squeeze(-1) if self.draw_first else CERTAINTY[self.by](log_p)
        memory = view.memory
        if self.falls is None:
            count = per_call(self.narrow(view), self.calls) * (1 if self.calls else self.each)
        else:
            count, step = falling_share(view.hidden.sum(1), memory[1], steps=self.calls or 1, end=self.falls)
            memory = (memory[0], step)
        committed = surest(score_table(score, rows, view.hidden), count)
        return committed.flatten()[rows], memory


def falling_share(
    left: Int[Tensor, " b"], step: Int[Tensor, " b"], *, steps: int, end: float
) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
    """The number of tokens that Dream reveals now, and the step after it. [Dream]

    A step that reveals nothing changes nothing, so it is passed over; the last one reveals all that are left.
    """
    times = torch.linspace(1, end, steps + 1, device=left.device)
    share = (left[:, None] * (1 - times[1:] / times[:-1])).long()
    share[:, -1] = left
    ahead = torch.arange(steps, device=left.device) >= step[:, None].clamp(max=steps - 1)
    now = (ahead & (share > 0)).long().argmax(1)
    return share.gather(1, now[:, None]).squeeze(1), now + 1


@POLICIES.register("left-to-right", "the leftmost position first")
@dataclass(frozen=True)
class Leftmost(Looking):
    """From left to right; the head runs only at the positions that are revealed."""

    surest_first: ClassVar[bool] = False
    budget: ClassVar[str | None] = "calls"

    calls: int | None = None  # number of network calls; None: one token per call
    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    def __post_init__(self) -> None:
        check_total(self.calls)

    @property
    def law(self) -> str:
        if self.calls is None:
            return "approximate (one order, from left to right)"
        return "approximate (from left to right, several tokens per forward pass)"

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        hidden, sigma = super().wants(view)
        return hidden & (hidden.cumsum(1) <= per_call(view, self.calls)[:, None]), sigma
