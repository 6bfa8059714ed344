"""MDLM with SUBS: never predict the mask, copy visible tokens; the bound (NELBO) is then a mean of masked-LM losses.

`nats` gives nats per token and never averages: the sum over a row is an unbiased estimate of the row's bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.diffusion import d3pm
from unmask.diffusion.blocks import given_tokens
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.corruption import hide_count
from unmask.diffusion.kernels.absorbing import Absorbing
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.reverse import reveal_chance
from unmask.diffusion.rows import forbid, row_nats, rows_where, spread
from unmask.diffusion.schedule import LogLinear, Schedule, shown_sigma
from unmask.diffusion.times import Count, Stratified, Times, check_total, counts
from unmask.errors import UserError
from unmask.shapes import Network, RowLogits, Tokens

HALF = 2.0  # half of the tokens are hidden on average: with this weight `flat` is about nats per hidden token


def row_log_probs(logits: Float[Tensor, "n v"], *, mask: int) -> Float[Tensor, "n v"]:
    """log p(x_0 | x_t) at hidden positions."""
    return forbid(logits, mask).log_softmax(-1)


def log_probs(logits: Float[Tensor, "b l v"], x_t: Int[Tensor, "b l"], *, mask: int) -> Float[Tensor, "b l v"]:
    """log p(x_0 | x_t) everywhere: zero-masking where hidden, carry-over where visible. For inspection."""
    copied = torch.full_like(logits, -torch.inf).scatter(-1, x_t[..., None], 0.0)
    return torch.where((x_t == mask)[..., None], forbid(logits, mask).log_softmax(-1), copied)


def cross_entropy(
    network: Network, x0: Int[Tensor, "b l"], x_t: Int[Tensor, "b l"], sigma: Float[Tensor, " b"], *, mask: int
) -> Float[Tensor, "b l"]:
    """−log p(x_0 | x_t) at hidden positions, 0 where the token is visible: the masked-LM loss, not yet weighted."""
    rows = rows_where(x_t == mask)
    return spread(row_nats(network(x_t, sigma, rows), x0.flatten()[rows], mask=mask), rows, x0)


def by_count(
    network: Network, clean: CleanRows, *, t: Float[Tensor, " b"] | None = None, schedule: Schedule = LogLinear()
) -> tuple[Float[Tensor, "b l"], Float[Tensor, " b"]]:
    """Cross-entropies of hidden tokens and their weights free/k: k masks, k uniform over 1..free. [RADD]

    This is the continuous bound with the time integrated out. `t` are uniforms in [0, 1), by default those of the
    noise; stratified ones (`stratified_times`) give the smallest variance of the estimators here. Given k, the hidden
    share follows a Beta(k, free − k + 1) distribution, that of the k-th smallest of `free` uniforms. A network with
    time conditioning is shown the σ of its schedule at a draw from it, so the bound stays the continuous one.
    """
    x0, u, mask = clean.x0, clean.noise.u, clean.mask
    free = clean.free.sum(1)
    some = free > 0  # a row without free tokens has no masks and costs nothing
    k = torch.where(some, counts(clean.noise.t if t is None else t, free.clamp(min=1)), 0)
    x_t = hide_count(x0, k, u, mask=mask, frozen=clean.frozen)
    ordered = u.masked_fill(~clean.free, torch.inf).sort(1).values
    share = torch.where(some, ordered.gather(1, (k[:, None] - 1).clamp(min=0)).squeeze(1), 0.0)
    nats = cross_entropy(network, x0, x_t, shown_sigma(schedule, share), mask=mask)
    return nats, free.to(u.dtype) / k.clamp(min=1)


@OBJECTIVES.register("mdlm", "masked diffusion: a weighted mean of masked-language-model losses")
@dataclass(frozen=True)
class MDLM(Objective):
    """The MDLM objective, with the switches of the paper's Table 8.

    steps = None is continuous time. Switching off carry_over or zero_masking needs discrete time: without carry-over
    the network must also predict the visible tokens at t = 0; without zero-masking it may predict the mask.
    """

    facts: ClassVar[Facts] = Facts(optimizer="muon")
    advice: ClassVar[Mapping[str, Any]] = {"times": Count(), "weight": "flat"}

    schedule: Schedule = LogLinear()  # α_t: log-linear, cosine, linear, geometric, polynomial, ..
    steps: int | None = None  # T, the number of steps of the discrete process; none: continuous time
    carry_over: bool = True  # copy visible tokens
    zero_masking: bool = True  # never predict the mask
    times: Times = Stratified()  # count, stratified:low=0, bell:mean=0,spread=1,floor=0.2
    weight: Literal["bound", "flat"] = "bound"  # flat: train with plain cross-entropy and report the bound
    whole: bool = True  # from no mask to all; false: the schedule's range, as the reference (no bound)
    given_first: bool = field(default=False, metadata={"hidden": True})  # the first token of a row is never predicted

    def __post_init__(self) -> None:
        check_total(self.steps)
        if self.steps is None and not (self.carry_over and self.zero_masking):
            raise UserError("the bound without carry-over or zero-masking is a sum over T steps: give steps.")
        if self.weight == "flat" and not (self.carry_over and self.zero_masking):
            raise UserError("weight = flat is cross-entropy on masks: it needs carry_over and zero_masking.")
        if not self.whole and self.times.by_count:
            raise UserError("times = count covers the whole range of noise; with whole = false choose stratified.")

    def kernel(self, parts: Mapping[str, nn.Module] | None = None) -> Absorbing:
        return Absorbing(self.schedule, self.whole)

    @property
    def leads(self) -> bool:
        return self.given_first

    @property
    def means(self) -> str:
        if not self.whole:
            return "a bound on -log p less the ends of the schedule, as the reference code reports"
        if self.steps is not None:
            return f"upper bound on -log p, {self.steps} steps of time"
        how = "by the number of masks" if self.times.by_count else "by t"
        low = self.times.low if isinstance(self.times, Stratified) else 0.0
        bound = "upper bound on -log p" if not low else f"a bound on -log p less the times below {low:g}"
        return f"{bound}, continuous time, {how}"

    def estimators(self) -> Mapping[str, Objective]:
        precise = replace(self, times=Count() if self.steps is None and self.whole else Stratified())
        if not (self.carry_over and self.zero_masking and self.whole):
            return {self.name: precise}
        return {"count" if self.steps is None else "steps": precise, self.name: precise}

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """The NELBO in nats per token, with tokens hidden by the uniforms of the noise. [MDLM eq. 10, 11; Alg. 1]

        Unbiased for uniform noise.t.
        """
        if self.given_first:
            clean = replace(clean, frozen=given_tokens(clean, first=True))
        if self.steps is not None:
            return self.discrete(network, clean, self.steps)
        when = self.times.at(clean.noise.t)
        if self.times.by_count:
            ce, weight = by_count(network, clean, t=when.t, schedule=self.schedule)
            weight = weight / when.density
        else:
            kernel = self.kernel()
            level = kernel.level(when.t)
            x_t = kernel.forward(clean, when.t)
            # A row without free tokens has loss 0, though its weight is infinite.
            weight = torch.where(level.hidden > 0, level.weight, 0.0) / when.density
            ce = cross_entropy(network, clean.x0, x_t, kernel.sigma(when.t), mask=clean.mask)
        bound = weight[:, None] * ce
        return Nats(bound if self.weight == "bound" else HALF * ce, bound)

    def discrete(self, network: Network, clean: CleanRows, total: int) -> Nats:
        """The NELBO of T steps; the time picks one of them, from i/T to (i − 1)/T. [MDLM eq. 8]

        The step i = 1 reveals all that is left: it is the reconstruction term, without which this is not a bound.
        """
        kernel, at = self.kernel(), d3pm.draw_steps(self.times, clean.noise, total)
        if self.carry_over and self.zero_masking:
            x_t = kernel.forward(clean, at.t)
            ce = cross_entropy(network, clean.x0, x_t, kernel.sigma(at.t), mask=clean.mask)
            bound = at.weight * reveal_chance(kernel.level(at.s), kernel.level(at.t))[:, None] * ce
            return Nats(bound if self.weight == "bound" else HALF * ce, bound)
        bound = d3pm.step_nats(network, clean, kernel, at, zero_masking=self.zero_masking).bound
        if not self.carry_over:
            bound = bound + d3pm.reconstruction(network, clean, zero_masking=self.zero_masking)
        return Nats(bound, bound)

    def log_probs(self, logits: RowLogits, x_t: Tokens, *, mask: int) -> RowLogits:
        return log_probs(logits, x_t, mask=mask)


class NoisyPass(NamedTuple):
    """A pass of the network over noisy rows, with what it costs."""

    x_t: Int[Tensor, "b l"]
    rows: Int[Tensor, " n"]  # flat positions of the masks
    logits: Float[Tensor, "n v"]
    ce: Float[Tensor, "b l"]
    weight: Float[Tensor, "b 1"]


@dataclass(frozen=True)
class BoundByMDLM(Objective):
    """An objective with a loss of its own, whose reported bound is MDLM's. Train it from a model (`--init`)."""

    schedule: Schedule = LogLinear()  # α_t, for networks that take the noise level

    @property
    def bound(self) -> MDLM:
        return MDLM(self.schedule, times=Count())

    @property
    def means(self) -> str:
        return self.bound.means

    def estimators(self) -> Mapping[str, Objective]:
        return self.bound.estimators()

    def noisy_pass(self, network: Network, clean: CleanRows) -> NoisyPass:
        """The pass that the bound takes, which the loss uses too."""
        seen: list[tuple[Tensor, Tensor, Tensor]] = []

        def watched(x_t: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
            seen.append((x_t, rows, network(x_t, sigma, rows)))
            return seen[-1][2]

        ce, weight = by_count(watched, clean, schedule=self.schedule)
        return NoisyPass(*seen[0], ce, weight[:, None])
