"""As many tokens per call as a rule allows, and at least one: threshold, certificate, entropy bound, KLASS.

All of them draw the tokens of one call independently; they differ in the rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.diffusion.certainty import confidence, entropy, ranking, surest
from unmask.diffusion.rows import forbid
from unmask.diffusion.schedule import LogLinear, Schedule
from unmask.diffusion.times import check_total
from unmask.errors import UserError
from unmask.random import Dice
from unmask.registry import derived
from unmask.sampling.policies.confidence import Looking, per_call, score_table
from unmask.sampling.policy import POLICIES, Chosen, Draw, Flat, Logits, Memory, PolicyView


def prefix(
    score: Float[Tensor, "b w"], allows: Callable[[Float[Tensor, "b w"]], Bool[Tensor, "b w"]]
) -> Bool[Tensor, "b w"]:
    """The longest prefix of the best positions that `allows` accepts (scores from best to worst); at least one."""
    order = ranking(score)
    run = allows(score.gather(1, order)).long().cumprod(1).bool()
    run[:, 0] = True
    return torch.zeros_like(run).scatter(1, order, run) & (score > -torch.inf)


def jointly_certain(ranked: Float[Tensor, "b w"]) -> Bool[Tensor, "b w"]:
    """Σ (1 − c) + max (1 − c) ≤ 1 over a prefix: its likeliest tokens are then also jointly the likeliest.

    Any other joint value differs somewhere, so its mass is at most max (1 − c) ≤ 1 − Σ (1 − c) ≤ P(all likeliest).
    """
    doubt = torch.where(ranked > -torch.inf, 1 - ranked, 2.0)
    return doubt.cumsum(1) + doubt.cummax(1).values <= 1


def bounded_prefix(gamma: float) -> Callable[[Float[Tensor, "b w"]], Bool[Tensor, "b w"]]:
    """Σ H − max H ≤ γ over a prefix, given −H: bounds the dependence that independent draws ignore."""

    def allows(ranked: Float[Tensor, "b w"]) -> Bool[Tensor, "b w"]:
        h = torch.where(ranked > -torch.inf, -ranked, 0.0)
        return h.cumsum(1) - h.cummax(1).values <= gamma

    return allows


@POLICIES.register("threshold", "every position above confidence tau at once")
@dataclass(frozen=True)
class Threshold(Looking):
    """Every position whose most likely token has at least probability tau; at least the best one. [Fast-dLLM]"""

    tau: float = 0.9
    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise UserError(f"a confidence threshold must lie in (0, 1]; saw {self.tau}.")

    @property
    def law(self) -> str:
        return f"approximate (all positions surer than {self.tau:g} at once)"

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        score = score_table(confidence(forbid(logits, view.mask).log_softmax(-1)), rows, view.hidden)
        sure = (score >= self.tau) | surest(score, torch.ones_like(view.clock))
        return sure.flatten()[rows], view.memory


@POLICIES.register("certificate", "sets whose joint mode is certified")
@dataclass(frozen=True)
class Certificate(Looking):
    """The largest set whose most likely tokens are certified to be jointly most likely. Meant for temperature 0."""

    law: ClassVar[str] = "approximate (sets whose joint mode is certified)"

    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        score = score_table(confidence(forbid(logits, view.mask).log_softmax(-1)), rows, view.hidden)
        return prefix(score, jointly_certain).flatten()[rows], view.memory


@POLICIES.register("entropy-bound", "sets that share little information")
@dataclass(frozen=True)
class EntropyBound(Looking):
    """The largest low-entropy set whose tokens can share at most γ nats. [EB-sampler]"""

    gamma: float = 0.1  # nats of dependence per call that may be ignored; 0: one token per call
    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise UserError(f"gamma must not be negative; saw {self.gamma}.")

    @property
    def law(self) -> str:
        lost = f"at most {self.gamma:g} nats of dependence ignored per forward pass"
        return f"approximate ({lost}; most certain first)"

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        score = score_table(-entropy(forbid(logits, view.mask).log_softmax(-1)), rows, view.hidden)
        return prefix(score, bounded_prefix(self.gamma)).flatten()[rows], view.memory


@POLICIES.register("klass", "confident and stable positions at once")
@dataclass(frozen=True)
class Klass(Looking):
    """Certain and stable: positions whose distribution has hardly changed over the last calls. [KLASS]

    It stores a distribution for every position, (b w v) numbers: for small windows or vocabularies.
    """

    budget: ClassVar[str | None] = "calls"

    tau: float = 0.9  # smallest probability of the most likely token
    moved: float = 0.01  # largest KL(now || before), in nats
    calls_settled: int = 2  # number of calls over which the KL must stay below it
    calls: int | None = None  # budget of calls if no position is stable; None: one token per call
    schedule: Schedule = derived(LogLinear())  # matters only to networks with time conditioning

    def __post_init__(self) -> None:
        check_total(self.calls_settled)
        check_total(self.calls)

    @property
    def law(self) -> str:
        return f"approximate (all positions surer than {self.tau:g} and settled at once)"

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        nothing = torch.empty(*hidden.shape, 0, device=hidden.device)  # the vocabulary is not known yet
        return hidden.sum(1).clamp(min=1), torch.zeros_like(hidden, dtype=torch.long), nothing

    def choose(self, view: PolicyView, rows: Flat, logits: Logits, draw: Draw) -> Chosen:
        count, settled, before = view.memory
        log_p = forbid(logits, view.mask).log_softmax(-1)
        if before.shape[-1]:
            calm = relative_entropy(log_p, before.flatten(0, 1)[rows]) < self.moved
            calm &= view.clock[rows // view.hidden.shape[1]] > 0  # the first call has nothing to compare with
            for_calls = torch.where(calm, settled.flatten()[rows] + 1, 0)
        else:
            for_calls = torch.zeros_like(rows)
        sure = confidence(log_p)
        good = (sure >= self.tau) & (for_calls >= self.calls_settled)
        fallback = surest(score_table(sure, rows, view.hidden), per_call(view, self.calls)).flatten()[rows]
        row = rows // view.hidden.shape[1]
        has_good = torch.zeros_like(view.clock).index_add(0, row, good.long()) > 0
        now = log_p.new_zeros(view.hidden.numel(), log_p.shape[-1]).index_copy(0, rows, log_p)
        memory = (
            count,
            torch.zeros_like(settled).flatten().index_copy(0, rows, for_calls).view_as(settled),
            now.view(*view.hidden.shape, -1),
        )
        return torch.where(has_good[row], good, fallback), memory


def relative_entropy(log_p: Float[Tensor, "n v"], log_q: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """KL(p || q) in nats; where p has no mass it costs nothing."""
    return torch.where(log_p > -torch.inf, log_p.exp() * (log_p - log_q), 0.0).sum(-1)
