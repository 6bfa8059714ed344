"""Policy: where to commit, and where to hide again. What to commit is drawn apart.

A policy is a frozen dataclass and its own setting. It sees rows through a `Look`, says at which positions it needs
the network's answer (`wants`), and which of these are committed now (`choose`).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.schedule import Schedule
from unmask.errors import UserError
from unmask.random import Dice
from unmask.registry import Registry

Memory = tuple[Tensor, ...]  # what a policy remembers between calls; the first dimension of each tensor is b
Draw = Callable[[], Tensor]  # the tokens (n) that would be committed if every position asked for were


@dataclass(frozen=True)
class Look:
    """What a policy sees of the rows that still have something to fill: one window of them."""

    tokens: Int[Tensor, "b w"]
    hidden: Bool[Tensor, "b w"]  # where a token is to come
    dice: Dice  # random numbers, a function of (seed, row, position)
    clock: Int[Tensor, " b"]  # calls that each row has had in this window
    memory: Memory
    mask: int  # the mask's id
    free: Bool[Tensor, "b w"]  # what may ever be drawn in this window: hidden now, or drawn in it before


@runtime_checkable
class Policy(Protocol):
    """A subclass is a frozen dataclass with a name in `POLICIES`; `--sampler NAME:FIELD=VALUE` sets its fields."""

    name: ClassVar[str] = ""
    process: ClassVar[str] = "masked"  # what it is a policy of: a member of PROCESSES
    own: ClassVar[bool] = False  # the reverse process of the objective whose facts name it, and of no other
    revises: ClassVar[bool] = False  # drawn tokens may be hidden again
    budget: ClassVar[str | None] = None  # the field that `--steps` sets
    needs_budget: ClassVar[bool] = False

    @property
    def law(self) -> str:
        """What the samples follow: "exact", "grid-T", or "approximate (why)"."""

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """What can be settled before the network is asked anything."""
        return ()

    def wants(self, look: Look) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        """Where the network's answer is needed, and the noise level σ to show it."""

    def choose(
        self, look: Look, rows: Int[Tensor, " n"], logits: Float[Tensor, "n v"], draw: Draw
    ) -> tuple[Bool[Tensor, " n"], Memory]:
        """Which of these flat positions are committed now. The logits still hold the mask's own."""
        return torch.ones_like(rows, dtype=torch.bool), look.memory

    def revise(
        self, look: Look, rows: Int[Tensor, " n"], log_probs: Float[Tensor, " n"]
    ) -> tuple[Bool[Tensor, "b w"], Memory]:
        """Which drawn positions are hidden again, now that `look` holds the tokens just committed at `rows`."""
        return torch.zeros_like(look.hidden), look.memory


POLICIES: Registry[Policy] = Registry(
    "sampler", room="unmask.sampling.policies", group="unmask.samplers", inline=True
)


def policy_of(text: str, *, steps: int | None = None, schedule: Schedule | None = None) -> Policy:
    """The policy of a sampler, `threshold` or `threshold:tau=0.8`; `steps` is T of a grid, or a number of calls.

    >>> policy_of("ancestral", steps=64).law
    'grid-64'
    """
    name, _, said = text.partition(":")
    kind = POLICIES[name]
    values: dict[str, Any] = {}
    if schedule is not None and any(one.name == "schedule" for one in fields(kind)):  # type: ignore[arg-type]
        values["schedule"] = schedule
    if steps is not None:
        if kind.budget is None:
            with_steps = ", ".join(key for key in POLICIES if POLICIES[key].budget)
            raise UserError(f"the sampler {name!r} finds its number of calls by itself; steps are for {with_steps}.")
        values[kind.budget] = steps
    elif kind.needs_budget and not said:
        raise UserError(f"the sampler {name!r} needs a number of steps.")
    return POLICIES.make(text, **values)
