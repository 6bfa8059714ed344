"""Plans: the order of revealing is drawn before any network call, because it does not depend on the network.

In the masked process each position has its own time, independent of every token. A position with uniform number u is
hidden while the share 1 − α_t is above u·(1 − α_1), so backwards in time positions are revealed by decreasing u.
Steps that reveal nothing are skipped, and the head runs only at the revealed positions.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.schedule import LogLinear, Schedule, shown_sigma
from unmask.diffusion.times import check_total, grid
from unmask.errors import UserError
from unmask.random import ORDER, Dice
from unmask.registry import derived
from unmask.sampling.policy import POLICIES, Chosen, Draw, Flat, Logits, Memory, Policy, PolicyView


def ranks(hidden: Bool[Tensor, "b w"], u: Float[Tensor, "b w"]) -> Int[Tensor, "b w"]:
    """0 for the hidden position of a row with the largest u, 1 for the next; visible positions come last."""
    order = torch.where(hidden, u, -1.0).argsort(1, descending=True)
    places = torch.arange(hidden.shape[1], device=hidden.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def dense(hidden: Bool[Tensor, "b w"], step: Int[Tensor, "b w"]) -> Int[Tensor, "b w"]:
    """The steps of a row renumbered 0, 1, 2, ... in order, without empty steps."""
    last = torch.iinfo(step.dtype).max
    value, order = torch.where(hidden, step, last).sort(1)
    new = torch.cat([torch.zeros_like(value[:, :1]), (value[:, 1:] != value[:, :-1]).long()], 1).cumsum(1)
    return torch.empty_like(new).scatter_(1, order, new)


@runtime_checkable
class Planned(Policy, Protocol):
    """A policy that is a plan: each position has its call and the noise level of that call."""

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """(call (b w), sigma (b w)): positions with the smallest call come first."""

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        call, sigma = view.memory
        first = torch.where(view.hidden, call, torch.iinfo(call.dtype).max).amin(1, keepdim=True)
        now = (call == first) & view.hidden
        return now, torch.where(now, sigma, 0.0).amax(1)


@POLICIES.register("first-hitting", "exact: one token per call, in random order")
@dataclass(frozen=True)
class FirstHitting(Planned):
    """One position per call, in uniformly random order: the continuous process itself, no discretisation. [FHS]"""

    law: ClassVar[str] = "exact"

    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        u = dice.grid(hidden.shape[1], ORDER)
        return ranks(hidden, u), shown_sigma(self.schedule, u).float()


@POLICIES.register("ancestral", "a grid of T steps, empty ones dropped")
@dataclass(frozen=True)
class Ancestral(Planned):
    """Ancestral sampling on a grid of T steps: positions whose times fall into one step appear together. [MDLM §4.1]

    The distribution of the step-by-step sampler, without its empty steps (the paper's caching). The last step reveals
    all that is left. Plain forms: tests/reference/samplers.py:ancestral and tests/reference/samplers.py:cached.
    """

    budget: ClassVar[str | None] = "steps"

    steps: int = 1000  # T
    schedule: Schedule = derived(LogLinear())  # α_t: how many positions each step reveals

    def __post_init__(self) -> None:
        check_total(self.steps)

    @property
    def law(self) -> str:
        return f"grid-{self.steps}"

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        step, sigma = self.grid(hidden, dice)
        return dense(hidden, step), sigma[step]

    def grid(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> tuple[Int[Tensor, "b w"], Float[Tensor, " t"]]:
        """The step of each position, and the noise level of each step."""
        level = self.schedule.at(grid(self.steps).to(hidden.device))
        edges = (level.hidden - level.hidden[-1]) / (level.hidden[0] - level.hidden[-1])
        # Step i goes from share edges[i] down to edges[i + 1]: from 1 to 0, as `schedule.complete`.
        u = dice.grid(hidden.shape[1], ORDER)
        return self.steps - 1 - torch.searchsorted(edges[1:-1].flip(0), u, right=True), level.sigma.float()


@POLICIES.register("every-step", "a grid of T steps, a forward pass in each: ancestral without its savings")
@dataclass(frozen=True)
class EveryStep(Ancestral):
    """The texts of `Ancestral`, token for token, with a forward pass in every step until a row is filled.

    For measuring what is saved by leaving out the steps that reveal nothing.
    """

    takes_all: ClassVar[bool] = True

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        step, sigma = self.grid(hidden, dice)
        return step, sigma.expand(len(step), -1)  # steps to go; the noise levels of these steps

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        to_go, sigma = view.memory
        return (to_go == 0) & view.hidden, sigma[:, 0]

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        to_go, sigma = view.memory
        return torch.ones_like(rows, dtype=torch.bool), (to_go - 1, sigma.roll(-1, 1))


@POLICIES.register("groups", "random groups of growing size, one per call")
@dataclass(frozen=True)
class Groups(Planned):
    """Random groups of chosen sizes, one group per call. Small groups first: the first tokens are the least certain.

    Give `sizes`, or a number of `calls`: then the sizes grow like k^(growth − 1), scaled to each row's number of
    blanks.
    """

    budget: ClassVar[str | None] = "calls"
    needs_budget: ClassVar[bool] = True
    law: ClassVar[str] = "approximate (tokens of a group are drawn independently)"

    calls: int | None = None  # number of network calls
    sizes: tuple[int, ...] | None = None  # or the sizes themselves; those beyond a row's blanks are not used
    growth: float = 2.0  # 1: equal sizes; 2: sizes grow linearly
    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    def __post_init__(self) -> None:
        if (self.calls is None) == (self.sizes is None):
            raise UserError("planned groups need either a number of calls or the sizes, and not both.")
        check_total(self.calls)
        if self.sizes is not None and (not self.sizes or min(self.sizes) < 1):
            raise UserError(f"the size of a group must be at least 1; saw {self.sizes}.")
        if not self.growth >= 1:
            raise UserError(f"growth must be at least 1 (equal groups); saw {self.growth}.")

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        rank = ranks(hidden, dice.grid(hidden.shape[1], ORDER))
        count = hidden.sum(1)
        ends = self.ends(count)
        call = (rank[:, :, None] >= ends[:, None, :]).sum(-1)
        begun = torch.cat([torch.zeros_like(ends[:, :1]), ends], 1)  # tokens revealed before each call
        share = 1 - begun.double() / count.clamp(min=1)[:, None]
        sigma = shown_sigma(self.schedule, share.clamp(0, 1)).float().gather(1, call.clamp(max=ends.shape[1]))
        return torch.where(hidden, call, -1), sigma

    def ends(self, count: Int[Tensor, " b"]) -> Int[Tensor, "b calls"]:
        """How many of a row's blanks are filled after each call."""
        if self.sizes is not None:
            ends = torch.tensor(self.sizes, device=count.device).cumsum(0)
            if int(count.max()) > int(ends[-1]):
                raise UserError(f"groups of {sum(self.sizes)} tokens in all cannot fill {int(count.max())} blanks.")
            return ends.expand(len(count), -1)
        calls = self.calls or 1
        k = torch.arange(1, calls + 1, device=count.device)
        smooth = (count[:, None].double() * (k / calls).double() ** self.growth).round().long()
        return torch.maximum(smooth, torch.minimum(k, count[:, None]))  # at least one per call
