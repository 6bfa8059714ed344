"""Estimators of −log p(x): rows in, nats per token out. docs/how/evaluate.md compares them.

    nats(network, clean: CleanRows) -> nats (b l)

The noise has uniforms: t says how much of a row is hidden, u which tokens, or in which order. Frozen tokens are given
and cost nothing. The network returns logits only at positions whose nats are needed. An objective's own numbers are
`OwnEstimator`; the others are members of `ESTIMATORS`, for masked language models, whatever they were trained with.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.certainty import CERTAINTY, even_share, surest
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM, row_log_probs
from unmask.diffusion.objective import OBJECTIVES, Objective, objective_of
from unmask.diffusion.rows import row_nats, rows_where
from unmask.diffusion.schedule import LogLinear, Schedule, complete, shown_sigma
from unmask.diffusion.times import Count, away_from_zero
from unmask.errors import UserError, unknown
from unmask.random import Noise, keys
from unmask.registry import Registry, own_fields
from unmask.shapes import Network

POLICIES = {  # orders in which `duel` reveals
    "confidence": "the most confident positions first",
    "margin": "positions with the largest probability margin first",
    "entropy": "positions of lowest entropy first",
    "left": "from left to right",
}
LAST = 1e-3  # the estimator `time` draws no t below this: there it takes one step
BOUND = "upper bound on -log p"


class Estimator(ABC):
    """An estimator of the nats of rows, and the meaning of its number: a frozen dataclass."""

    name: str
    exact: bool = False  # an exact likelihood, neither random nor a bound
    chance: bool = True  # whether the number depends on the seed
    weighted: bool = False  # passes are averaged as probabilities, not as nats
    likelihood: bool = True  # −log p or a bound on it; False: no perplexity and no bits per byte
    orders: bool = False  # a pass is −log p of a row in a random order, and p is the mean of these probabilities

    @property
    @abstractmethod
    def means(self) -> str:
        """The meaning of the number, in one sentence."""

    @abstractmethod
    def nats(self, network: Network, clean: CleanRows) -> Tensor:
        """Nats of every token (b l)."""


ESTIMATORS: Registry[Estimator] = Registry("estimator", group="unmask.estimators")


def estimator(
    name: str = "auto",
    *,
    objective: Objective | str = "mdlm",
    steps: int = 0,
    policy: str = "confidence",
    reveal: int = 1,
    budget: int = 8192,
    parts: Mapping[str, Any] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> Estimator:
    """The estimator of a name, for a model of an objective; `auto` is the best one.

    `steps` is the T of a bound in discrete time (0: that of the objective); `policy` and `reveal` belong to duel;
    `budget` is the most tokens of a forward pass where one row becomes many; `parts` and `state` are the
    objective's own.
    """
    Duel(policy=policy, reveal=reveal)  # a wrong one is refused, whatever the estimator
    objective = objective_of(objective)
    if steps and objective.steps is not None:
        objective = replace(objective, steps=steps)
    name, known = objective.estimator if name == "auto" else name, dict(objective.estimators())
    schedule, others = objective.schedule or LogLinear(), list[str]()
    if objective.facts.masked_lm:
        discrete = MDLM(schedule, steps=steps or objective.steps or 1000)
        known, others = {"count": MDLM(schedule, times=Count()), "steps": discrete, **known}, list(ESTIMATORS)
    if name in known:
        return OwnEstimator(name, known[name], parts or {}, state or {})
    if name not in others:
        raise unknown(f"estimator for {objective.name} models", name, [*known, *others])
    entry = ESTIMATORS.entry(name)
    values = {"schedule": schedule, "policy": policy, "reveal": reveal, "budget": budget}
    return entry.make(**{key: values[key] for key in own_fields(entry.kind) if key in values})


def estimator_names() -> dict[str, str]:
    """Every estimator with a line about it: of all masked language models, or of the objectives that compute it."""
    own: dict[str, list[str]] = {}
    for objective in OBJECTIVES:
        for name in OBJECTIVES.usual(objective).estimators():
            own.setdefault(name, []).append(objective)
    masked = {"count": "the bound by the number of masks", "steps": "the bound of --steps steps"}
    masked |= {name: ESTIMATORS.entry(name).about for name in ESTIMATORS}
    shared = {name: f"masked language models: {about}" for name, about in masked.items()}
    return shared | {
        name: f"{', '.join(of)}: {OBJECTIVES.usual(of[0]).estimators()[name].means}"
        for name, of in own.items()
        if name not in masked
    }


@dataclass(frozen=True)
class OwnEstimator(Estimator):
    """The bound, the exact likelihood or the loss that an objective itself computes."""

    name: str
    objective: Objective
    parts: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def low(self) -> float:
        """The first time: at t = 0 a loss that needs σ is infinite."""
        return 1e-3 if self.objective.facts.loss_needs_sigma and self.objective.steps is None else 0.0

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.objective.facts.exact

    @property
    def chance(self) -> bool:  # type: ignore[override]
        return self.objective.facts.noisy and not self.objective.facts.exact

    @property
    def likelihood(self) -> bool:  # type: ignore[override]
        return self.objective.facts.likelihood

    @property
    def orders(self) -> bool:  # type: ignore[override]
        return "orders" in self.objective.facts.gives and self.chance

    @property
    def means(self) -> str:
        return self.objective.means + (f", t >= {self.low:g}" if self.low else "")

    def nats(self, network: Network, clean: CleanRows) -> Tensor:
        # Objectives that need more random numbers get a key per row, made from the row's first uniform.
        t, u = clean.noise.t, clean.noise.u
        noise = Noise(away_from_zero(t, eps=self.low), u, keys(0, (u[:, 0] * 2**53).long()))
        return self.objective.nats(network, replace(clean, noise=noise, parts=self.parts, state=self.state)).bound


@ESTIMATORS.register("time", "the bound by t")
@dataclass(frozen=True)
class ByTime(Estimator):
    """The bound by t, with one last step from t = LAST to clean text: the weight grows without limit at t = 0.

    Times below LAST become LAST, with the weight 1/LAST: together they pay E[ce] at LAST, the last step of a process
    in discrete time, so this is a bound too.
    """

    means: ClassVar[str] = f"{BOUND}, continuous time, by t, with one step below {LAST:g}"

    schedule: Schedule = LogLinear()

    def nats(self, network: Network, clean: CleanRows) -> Tensor:
        at_last = complete(self.schedule, torch.tensor([LAST], dtype=torch.float64)).weight
        t = clean.noise.t
        late = replace(clean, noise=Noise(t.clamp(min=LAST), clean.noise.u))
        nats = MDLM(self.schedule).nats(network, late).bound
        return torch.where(t < LAST, 1 / (LAST * at_last.to(t)), 1.0)[:, None] * nats


@ESTIMATORS.register("weighted", "as order, averaged as probabilities", weighted=True)
@ESTIMATORS.register("order", "the mean over random orders of the chain rule")
@dataclass(frozen=True)
class ByOrder(Estimator):
    """−log p(x_{σ_j} | x_{σ_1..σ_{j−1}}) along the order of the uniforms: a row of l tokens becomes l states.

    A token with the uniform u is revealed when the share 1 − u is hidden. A network with time conditioning is shown
    the noise level of that share, as in the continuous process.
    """

    schedule: Schedule = LogLinear()
    budget: int = 8192  # the most tokens of a forward pass
    weighted: bool = False

    orders = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", "weighted" if self.weighted else "order")  # one class, two names

    @property
    def means(self) -> str:
        tighter = "tighter: the mean over random orders of probabilities"
        return f"{BOUND}, {tighter if self.weighted else 'the mean over random orders of the chain rule'}"

    def nats(self, network: Network, clean: CleanRows) -> Tensor:
        u = clean.noise.u
        rank = u.masked_fill(~clean.free, torch.inf).argsort(1).argsort(1)

        def state(row: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
            return rank[row] >= rank[row, at][:, None], shown_sigma(self.schedule, 1 - u[row, at])

        return _state_by_state(network, clean, state, self.budget)


@ESTIMATORS.register("pseudo", "each token given all others: for ranking only")
@dataclass(frozen=True)
class Pseudo(Estimator):
    """−log p(x_i | all others), one token hidden at a time, at the mean noise level of a row with one mask."""

    means: ClassVar[str] = "pseudo-likelihood: each token given all others; not a likelihood, for ranking only"

    budget: int = 8192  # the most tokens of a forward pass

    chance = False
    likelihood = False

    def nats(self, network: Network, clean: CleanRows) -> Tensor:
        places, free = torch.arange(clean.x0.shape[1], device=clean.x0.device), clean.free.sum(1)

        def state(row: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
            return places == at[:, None], level(1 / (free[row] + 1))

        return _state_by_state(network, clean, state, self.budget)


def _state_by_state(
    network: Network, clean: CleanRows, state: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], budget: int
) -> Float[Tensor, "b l"]:
    """One masked copy of the row per free token, scored at that token only; `state`: what is hidden, and σ."""
    x0, mask, free, length = clean.x0, clean.mask, clean.free, clean.x0.shape[1]
    asked, costs = rows_where(free), []
    for some in _pieces(asked, max(1, budget // length)):
        row, at = some // length, some % length
        hidden, sigma = state(row, at)
        x_t = torch.where(hidden & free[row], mask, x0[row])
        logits = network(x_t, sigma, torch.arange(len(some), device=x0.device) * length + at)
        costs.append(row_nats(logits, x0[row, at], mask=mask))
    nats = torch.cat(costs)
    return nats.new_zeros(x0.numel()).index_put((asked,), nats).view(x0.shape)


def _pieces(rows: Int[Tensor, " n"], size: int) -> Iterator[Int[Tensor, " m"]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


@ESTIMATORS.register("duel", "the likelihood of a sampler that reveals by a policy")
@dataclass(frozen=True)
class Duel(Estimator):
    """Replay the sampler that reveals positions by a policy, with the true tokens in place of sampled ones. [DUEL]

    The next positions depend on the revealed tokens alone (`certainty.ranking` breaks ties from the left), so the
    product of the probabilities is the sampler's own. It has ⌈free / reveal⌉ calls and the sampler's noise levels.
    """

    policy: str = "confidence"  # confidence, margin, entropy, left
    reveal: int = 1  # tokens per forward pass
    schedule: Schedule = LogLinear()

    exact = True
    chance = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown("policy", self.policy, POLICIES)
        if self.reveal < 1:
            raise UserError(f"--reveal must be at least 1, not {self.reveal}.")

    @property
    def means(self) -> str:
        how = f"reveals by {self.policy}, {self.reveal} at a time, the first of equals"
        return f"exact: -log p of the sampler that {how}"

    def nats(self, network: Network, clean: CleanRows) -> Tensor:
        x0, mask, hidden, paid = clean.x0, clean.mask, clean.free, None
        free = hidden.sum(1)
        for call in count():
            live = hidden.any(1).nonzero().squeeze(1)
            if not len(live):
                break
            here = hidden[live]
            x_t = torch.where(here, mask, x0[live])
            rows = rows_where(here)
            left = here.sum(1)
            sigma = shown_sigma(self.schedule, left.double() / free[live]).float()
            log_p = row_log_probs(network(x_t, sigma, rows), mask=mask)
            cost = -log_p.gather(1, x0[live].flatten()[rows, None]).squeeze(1)
            paid = cost.new_zeros(x0.shape) if paid is None else paid
            sure = torch.zeros_like(cost) if self.policy == "left" else CERTAINTY[self.policy](log_p)
            score = sure.new_full((here.numel(),), -torch.inf).index_put((rows,), sure).view(here.shape)
            chosen = surest(score, even_share(left, even_share(free[live], self.reveal) - call))
            spread = cost.new_zeros(here.numel()).index_put((rows,), cost).view(here.shape)
            paid[live] = torch.where(chosen, spread, paid[live])
            hidden[live] = here & ~chosen
        return torch.zeros(x0.shape, device=x0.device) if paid is None else paid


def level(share: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """σ = −log(1 − share): the noise level at which this share is hidden."""
    return -torch.log1p(-share)
