"""Policy: where to commit tokens, and where to hide them again. The tokens themselves are drawn elsewhere.

A policy is a frozen dataclass and its own setting. It sees rows through a `PolicyView`, names the positions at which
it needs logits (`wants`), and chooses which of them are committed now (`choose`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.times import check_total
from unmask.errors import UserError
from unmask.random import Dice
from unmask.registry import Registry, derived_fields, spell_component

Memory = tuple[Tensor, ...]  # a policy's state between calls; the first dimension of each tensor is b
Draw = Callable[[], Tensor]  # draws the tokens (n) at all asked positions
Flat = Int[Tensor, " n"]  # flat positions
Logits = Float[Tensor, "n v"]  # at flat positions
Chosen = tuple[Bool[Tensor, " n"], Memory]  # which flat positions are committed, and the memory after it


@dataclass(frozen=True)
class PolicyView:
    """What a policy sees: one window of the rows that still have blanks."""

    tokens: Int[Tensor, "b w"]
    hidden: Bool[Tensor, "b w"]  # blanks to fill
    dice: Dice  # random numbers, a function of (seed, row, position)
    clock: Int[Tensor, " b"]  # network calls of each row in this window
    memory: Memory
    mask: int  # the mask's id
    free: Bool[Tensor, "b w"]  # positions to draw in this window: hidden now, or drawn before


@runtime_checkable
class Policy(Protocol):
    """A subclass is a frozen dataclass with a name in `POLICIES`; `--sampler NAME:FIELD=VALUE` sets its fields."""

    name: ClassVar[str] = ""
    __dataclass_fields__: ClassVar[dict[str, Any]]
    needs: ClassVar[frozenset[str]] = frozenset({"masks"})  # what it needs of a model (`fitting`): see `Facts.gives`
    revises: ClassVar[bool] = False  # drawn tokens may be hidden again
    unshaped: ClassVar[bool] = False  # `choose` reads the network's own logits: only the tokens obey the constraints
    surest_first: ClassVar[bool] = False  # the most certain positions first; those without an alternative at once
    of_masked_lm: ClassVar[bool] = False  # made for networks trained as masked language models
    budget: ClassVar[str | None] = None  # the field that `--steps` sets
    needs_budget: ClassVar[bool] = False

    @property
    def law(self) -> str:
        """The distribution that the samples follow: "exact", "grid-T", or "approximate (why)"."""

    @property
    def takes_all(self) -> bool:
        """Whether it commits every position that it wants, whatever the logits."""
        return type(self).choose is Policy.choose

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """The initial memory, computed before any network call."""
        return ()

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        """The positions at which logits are needed, and the noise level σ for the network.

        If a constraint leaves one token at each of a row's positions, they are committed without a call, and without
        `choose`; the clock stands still.
        """

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        """Which of these flat positions are committed now.

        The logits are those of the distribution that the tokens are drawn from, within the constraint. Only an
        `unshaped` policy sees the network's own logits, and only there the mask's logit has a meaning.
        """
        return torch.ones_like(rows, dtype=torch.bool), view.memory

    def shown(self, view: PolicyView) -> Int[Tensor, "b w"]:
        """The tokens that the network sees."""
        return view.tokens

    def tilt(self, view: PolicyView, rows: Flat, logits: Logits) -> Logits:
        """The logits that tokens are drawn from, at the committed flat positions: temperature comes after them."""
        return logits

    def revise(self, view: PolicyView, rows: Flat, log_probs: Tensor) -> tuple[Bool[Tensor, "b w"], Memory]:
        """Which drawn positions are hidden again; `view` includes the tokens just committed at `rows`."""
        return torch.zeros_like(view.hidden), view.memory


class GridPolicy(Policy):
    """T steps of a process in discrete time: their law is that of the grid."""

    budget: ClassVar[str | None] = "steps"

    steps: int

    def __post_init__(self) -> None:
        check_total(self.steps)

    @property
    def law(self) -> str:
        return f"grid-{self.steps}"


POLICIES: Registry[Policy] = Registry(
    "sampler", room="unmask.sampling.policies", group="unmask.samplers", inline=True
)


def policy_of(text: str, *, steps: int | None = None, **given: Any) -> Policy:
    """The policy of a sampler, `threshold` or `threshold:tau=0.8`; `steps`: T of a grid, or the network calls.

    `given` are values for its derived fields, which follow from a model: a schedule, a kernel.

    >>> policy_of("ancestral", steps=64).law
    'grid-64'
    """
    name, _, options = text.partition(":")
    kind = POLICIES[name]
    values = {name: value for name, value in given.items() if name in derived_fields(kind)}
    if steps is not None:
        if kind.budget is None:
            with_steps = ", ".join(key for key in POLICIES if POLICIES[key].budget)
            raise UserError(f"the sampler {name!r} has no number of steps; steps are for {with_steps}.")
        values[kind.budget] = steps
    elif kind.needs_budget and not options:
        raise UserError(f"the sampler {name!r} needs a number of steps.")
    return POLICIES.make(text, **values)


def fitted_policy(policy: Policy, *, steps: int | None = None, **given: Any) -> Policy:
    """A policy object with what is given for its derived fields, and a number of steps."""
    values = {name: value for name, value in given.items() if name in derived_fields(type(policy))}
    if steps is not None and policy.budget is not None:
        values[policy.budget] = steps
    return replace(policy, **values) if values else policy


def sampler_name(sampler: str | Policy) -> str:
    """A sampler as one line: as it was written, or a policy's name with its fields, or else the name of its class."""
    if isinstance(sampler, str):
        return sampler
    kind = type(sampler)
    known = any(POLICIES.entry(name).kind is kind for name in POLICIES.entries)
    return spell_component(sampler) if known else kind.__name__


def check_sampler(sampler: object) -> None:
    """Refuse what is neither a name nor a policy."""
    if isinstance(sampler, type):
        raise UserError(
            f"a sampler is a name or a policy; saw the class {sampler.__name__}: give {sampler.__name__}()."
        )
    if not (sampler is None or isinstance(sampler, str | Policy)):
        raise UserError(
            f"a sampler is a name, such as 'first-hitting', or a policy (unmask.Policy); saw {sampler!r}."
        )
