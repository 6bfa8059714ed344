"""Estimators of −log p(x): rows in, nats per token out. One small function each; docs/how/evaluate.md compares them.

    (network, x0 (b l), t (b), u (b l), mask, frozen (b l)) -> nats (b l)

t and u are uniforms: t says how much of a row is hidden, u which tokens, or in which order. Frozen tokens are given
and cost nothing. The network returns logits only at positions whose nats are needed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion import mdlm
from unmask.diffusion.certainty import CERTAINTY, even_share, surest
from unmask.diffusion.corruption import check_clean
from unmask.diffusion.mdlm import MDLM, row_log_probs
from unmask.diffusion.objective import Objective, objective_of
from unmask.diffusion.rows import row_nats, rows_where
from unmask.diffusion.schedule import LogLinear, Schedule, complete, shown_sigma
from unmask.diffusion.times import away_from_zero
from unmask.errors import UserError, unknown
from unmask.random import Noise, keys
from unmask.shapes import Network

Nats = Callable[..., Float[Tensor, "b l"]]
POLICIES = (*CERTAINTY, "left")
LAST = 1e-3  # the estimator `time` draws no t below this: there it takes one step


@dataclass(frozen=True)
class Estimator:
    """An estimator of the nats of rows, and the meaning of its number."""

    name: str
    nats: Nats
    means: str  # the meaning of the number, in one sentence
    exact: bool = False  # an exact likelihood, neither random nor a bound
    chance: bool = True  # whether the number depends on the seed
    weighted: bool = False  # passes are averaged as probabilities, not as nats
    likelihood: bool = True  # −log p or a bound on it; False: no perplexity and no bits per byte


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
    objective = objective_of(objective)
    if steps and objective.grid is not None:
        objective = replace(objective, steps=steps)  # type: ignore[type-var]
    found = [own(objective.precise(), parts, state)]
    found += [replace(own(one, parts, state), name=name) for name, one in objective.variants().items()]
    if objective.facts.masked_lm:
        schedule = objective.schedule or LogLinear()
        found += of_conditionals(schedule, steps or objective.grid or 1000, policy, reveal, budget)
    known = {item.name: item for item in found}
    name = objective.estimator if name == "auto" else name
    if name not in known:
        raise unknown(f"estimator for {objective.name} models", name, known)
    return known[name]


def own(objective: Objective, parts: Mapping[str, Any] | None, state: Mapping[str, Tensor] | None) -> Estimator:
    """The bound, the exact likelihood or the loss that the objective itself computes."""
    low = 1e-3 if objective.facts.loss_needs_sigma and objective.grid is None else 0.0

    def nats(network: Network, x0: Tensor, *, t: Tensor, u: Tensor, mask: int, frozen: Tensor) -> Tensor:
        # Objectives that need more random numbers get a key per row, made from the row's first uniform.
        noise = Noise(away_from_zero(t, eps=low), u, keys(0, (u[:, 0] * 2**53).long()))
        return objective.nats(network, x0, noise=noise, mask=mask, frozen=frozen, parts=parts, state=state).bound

    exact, chance = objective.facts.exact, objective.facts.noisy and not objective.facts.exact
    means = objective.means + (f", t >= {low:g}" if low else "")
    return Estimator(objective.name, nats, means, exact=exact, chance=chance, likelihood=objective.facts.likelihood)


def of_conditionals(schedule: Schedule, steps: int, policy: str, reveal: int, budget: int) -> list[Estimator]:
    """Estimators for any objective whose softmax is p(x_0 | x_t), whatever it was trained with."""
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    if reveal < 1:
        raise UserError(f"--reveal must be at least 1, not {reveal}.")
    discrete = own(MDLM(schedule, steps=steps), None, None)
    bound = "upper bound on -log p"
    order = _closed(by_order, budget=budget, schedule=schedule)
    return [
        Estimator(
            "count", _closed(bound_by_count, schedule=schedule), f"{bound}, continuous time, by the number of masks"
        ),
        Estimator("time", by_time(schedule), f"{bound}, continuous time, by t, with one step below {LAST:g}"),
        Estimator("steps", discrete.nats, f"{bound}, {steps} steps of time"),
        Estimator("order", order, f"{bound}, the mean over random orders of the chain rule"),
        Estimator(
            "weighted", order, f"{bound}, tighter: the mean over random orders of probabilities", weighted=True
        ),
        Estimator(
            "duel",
            by_policy(policy, reveal, schedule),
            f"exact: -log p of the sampler that reveals by {policy}, {reveal} at a time, the first of equals",
            exact=True,
            chance=False,
        ),
        Estimator(
            "pseudo",
            _closed(by_leaving_one_out, budget=budget),
            "pseudo-likelihood: each token given all others; not a likelihood, for ranking only",
            chance=False,
            likelihood=False,
        ),
    ]


def _closed(nats: Nats, **settings: Any) -> Nats:
    return lambda network, x0, **rest: nats(network, x0, **rest, **settings)


def by_time(schedule: Schedule) -> Nats:
    """The bound by t, with one last step from t = LAST to clean text: the weight grows without limit at t = 0.

    Times below LAST become LAST, with the weight 1/LAST: together they pay E[ce] at LAST, the last step of a process
    in discrete time, so this is a bound too.
    """
    objective = MDLM(schedule)
    at_last = complete(schedule, torch.tensor([LAST], dtype=torch.float64)).weight

    def nats(network: Network, x0: Tensor, *, t: Tensor, u: Tensor, mask: int, frozen: Tensor) -> Tensor:
        noise = Noise(t.clamp(min=LAST), u)
        found = objective.nats(network, x0, noise=noise, mask=mask, frozen=frozen).bound
        return torch.where(t < LAST, 1 / (LAST * at_last.to(t)), 1.0)[:, None] * found

    return nats


def bound_by_count(
    network: Network,
    x0: Int[Tensor, "b l"],
    *,
    t: Float[Tensor, " b"],
    u: Float[Tensor, "b l"],
    mask: int,
    frozen: Bool[Tensor, "b l"],
    schedule: Schedule,
) -> Float[Tensor, "b l"]:
    """The bound by the number of masks (`diffusion.mdlm.by_count`)."""
    nats, weight = mdlm.by_count(network, x0, t=t, u=u, mask=mask, frozen=frozen, schedule=schedule)
    return weight[:, None] * nats


def by_order(
    network: Network,
    x0: Int[Tensor, "b l"],
    *,
    t: Float[Tensor, " b"],
    u: Float[Tensor, "b l"],
    mask: int,
    frozen: Bool[Tensor, "b l"],
    budget: int,
    schedule: Schedule,
) -> Float[Tensor, "b l"]:
    """−log p(x_{σ_j} | x_{σ_1..σ_{j−1}}) along the order of the uniforms: a row of l tokens becomes l states.

    A token with the uniform u is revealed when the share 1 − u is hidden. A network with time conditioning is shown
    the noise level of that share, as in the continuous process.
    """
    check_clean(x0, mask=mask)
    rank = u.masked_fill(frozen, torch.inf).argsort(1).argsort(1)

    def state(row: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return rank[row] >= rank[row, at][:, None], shown_sigma(schedule, 1 - u[row, at])

    return _state_by_state(network, x0, frozen, state, mask, budget)


def by_leaving_one_out(
    network: Network,
    x0: Int[Tensor, "b l"],
    *,
    t: Float[Tensor, " b"],
    u: Float[Tensor, "b l"],
    mask: int,
    frozen: Bool[Tensor, "b l"],
    budget: int,
) -> Float[Tensor, "b l"]:
    """−log p(x_i | all others), one token hidden at a time, at the mean noise level of a row with one mask."""
    check_clean(x0, mask=mask)
    places, free = torch.arange(x0.shape[1], device=x0.device), (~frozen).sum(1)

    def state(row: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return places == at[:, None], level(1 / (free[row] + 1))

    return _state_by_state(network, x0, frozen, state, mask, budget)


def _state_by_state(
    network: Network,
    x0: Int[Tensor, "b l"],
    frozen: Bool[Tensor, "b l"],
    state: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    mask: int,
    budget: int,
) -> Float[Tensor, "b l"]:
    """One masked copy of the row per free token, scored at that token only; `state`: what is hidden, and σ."""
    length, found = x0.shape[1], []
    asked = rows_where(~frozen)
    for some in _pieces(asked, max(1, budget // length)):
        row, at = some // length, some % length
        hidden, sigma = state(row, at)
        x_t = torch.where(hidden & ~frozen[row], mask, x0[row])
        logits = network(x_t, sigma, torch.arange(len(some), device=x0.device) * length + at)
        found.append(row_nats(logits, x0[row, at], mask=mask))
    nats = torch.cat(found)
    return nats.new_zeros(x0.numel()).index_put((asked,), nats).view(x0.shape)


def _pieces(rows: Int[Tensor, " n"], size: int) -> Iterator[Int[Tensor, " m"]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def by_policy(policy: str, reveal: int, schedule: Schedule) -> Nats:
    """Replay the sampler that reveals positions by a policy, with the true tokens in place of sampled ones. [DUEL]

    The next positions depend on the revealed tokens alone (`certainty.ranking` breaks ties from the left), so the
    product of the probabilities is the sampler's own. It has ⌈free / reveal⌉ calls and the sampler's noise levels.
    """

    def nats(network: Network, x0: Tensor, *, mask: int, frozen: Tensor, **unused: Tensor) -> Tensor:
        check_clean(x0, mask=mask)
        hidden, paid = ~frozen, None
        free = hidden.sum(1)
        for call in count():
            live = hidden.any(1).nonzero().squeeze(1)
            if not len(live):
                break
            here = hidden[live]
            x_t = torch.where(here, mask, x0[live])
            rows = rows_where(here)
            left = here.sum(1)
            sigma = shown_sigma(schedule, left.double() / free[live]).float()
            log_p = row_log_probs(network(x_t, sigma, rows), mask=mask)
            cost = -log_p.gather(1, x0[live].flatten()[rows, None]).squeeze(1)
            paid = cost.new_zeros(x0.shape) if paid is None else paid
            sure = torch.zeros_like(cost) if policy == "left" else CERTAINTY[policy](log_p)
            score = sure.new_full((here.numel(),), -torch.inf).index_put((rows,), sure).view(here.shape)
            chosen = surest(score, even_share(left, even_share(free[live], reveal) - call))
            spread = cost.new_zeros(here.numel()).index_put((rows,), cost).view(here.shape)
            paid[live] = torch.where(chosen, spread, paid[live])
            hidden[live] = here & ~chosen
        return torch.zeros(x0.shape, device=x0.device) if paid is None else paid

    return nats


def level(share: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """σ = −log(1 − share): the noise level at which this share is hidden."""
    return -torch.log1p(-share)
