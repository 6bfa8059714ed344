"""Noise schedules: α_t, the probability that a token is still visible at time t.

t = 0 is clean text; at t = 1 all or nearly all tokens are masks. A schedule is a frozen dataclass and its own
setting. It gives value and derivative together. It computes 1 − α_t separately from α_t, because near t = 0 it is
too small for a subtraction.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.registry import Registry


class Level(NamedTuple):
    """The noise level at some times: how much is visible, how much is hidden, how fast it changes."""

    alpha: Float[Tensor, "*b"]  # α_t: the share still visible
    hidden: Float[Tensor, "*b"]  # 1 − α_t: the share that is masked, accurate near t = 0
    slope: Float[Tensor, "*b"]  # −α'_t: the rate at which tokens are hidden, never negative

    def take(self, index: Int[Tensor, " n"]) -> "Level":
        """The levels at some entries, such as the rows that tokens belong to."""
        return Level(self.alpha[index], self.hidden[index], self.slope[index])

    @property
    def sigma(self) -> Float[Tensor, "*b"]:
        """σ_t = −log α_t, the total noise: the input of a network with time conditioning. [MDLM]"""
        return torch.where(self.hidden < 0.5, -torch.log1p(-self.hidden), -torch.log(self.alpha))

    @property
    def rate(self) -> Float[Tensor, "*b"]:
        """σ'_t = −α'_t/α_t. [SEDD]"""
        return self.slope / self.alpha

    @property
    def weight(self) -> Float[Tensor, "*b"]:
        """−α'_t/(1 − α_t): the weight of a masked token's cross-entropy in the NELBO. [MDLM eq. 10]"""
        return self.slope / self.hidden


@runtime_checkable
class Schedule(Protocol):
    def at(self, t: Float[Tensor, "*b"]) -> Level:
        """The noise level at times t in [0, 1]."""

    def when(self, hidden: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """The inverse: the time at which this share is hidden."""


SCHEDULES: Registry[Schedule] = Registry("schedule", inline=True)


def complete(schedule: Schedule, t: Float[Tensor, "*b"]) -> Level:
    """The level at t, stretched to run from nothing hidden at t = 0 to all hidden at t = 1.

    Schedules stop short of these ends (ε > 0, σ between two numbers), so that σ stays finite for networks that take
    it as input. A bound that left the ends out would be too low, by about ε of the loss with everything masked. The
    network is still shown σ of the schedule itself. Where nothing is hidden at t = 0, reveal probabilities and the
    weight do not change: only how many tokens are hidden does.
    """
    level, first, last = schedule.at(t), schedule.at(torch.zeros_like(t)), schedule.at(torch.ones_like(t))
    span = last.hidden - first.hidden
    return Level((level.alpha - last.alpha) / span, (level.hidden - first.hidden) / span, level.slope / span)


def shown_sigma(schedule: Schedule, share: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """σ of the schedule at the time when `complete` hides this share: what a network is shown."""
    first, last = schedule.at(torch.zeros_like(share)).hidden, schedule.at(torch.ones_like(share)).hidden
    return -torch.log1p(-(first + (last - first) * share))


def is_complete(schedule: Schedule) -> bool:
    """Whether the schedule itself runs from nothing hidden to all hidden."""
    first, last = schedule.at(torch.tensor([0.0, 1.0], dtype=torch.float64)).hidden.tolist()
    return bool(first == 0 and last == 1)


def check_times(t: Tensor) -> None:
    """Refuse times outside [0, 1], and NaN."""
    if not bool(((t >= 0) & (t <= 1)).all()):
        bad = t[~((t >= 0) & (t <= 1))].flatten()[0].item()
        raise UserError(f"a time must lie in [0, 1]; saw {bad}.")


def check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UserError(f"{name} must lie in [0, 1); saw {value}.")


def check_sigmas(low: float, high: float) -> None:
    if not 0 <= low < high < math.inf:
        raise UserError(f"the noise must grow: 0 <= low < high; saw low = {low}, high = {high}.")


@SCHEDULES.register("log-linear")
@dataclass(frozen=True)
class LogLinear:
    """α_t = 1 − (1 − ε) t: the hidden share grows linearly. The default. [MDLM]"""

    eps: float = 1e-3  # share still visible at t = 1; the reference code has 1e-3, the exact process 0

    def __post_init__(self) -> None:
        check_share("eps", self.eps)

    def at(self, t: Float[Tensor, "*b"]) -> Level:
        check_times(t)
        hidden = (1 - self.eps) * t
        return Level(1 - hidden, hidden, torch.full_like(t, 1 - self.eps))

    def when(self, hidden: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return hidden / (1 - self.eps)


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine:
    """α_t = ε + (1 − ε) cos(πt/2): few tokens are hidden at first. [MDLM]"""

    eps: float = 1e-3  # share still visible at t = 1

    def __post_init__(self) -> None:
        check_share("eps", self.eps)

    def at(self, t: Float[Tensor, "*b"]) -> Level:
        check_times(t)
        angle = math.pi / 2 * t
        hidden = (1 - self.eps) * 2 * torch.sin(angle / 2) ** 2  # 1 − cos x = 2 sin²(x/2)
        alpha = self.eps + (1 - self.eps) * torch.cos(angle)
        return Level(alpha, hidden, (1 - self.eps) * math.pi / 2 * torch.sin(angle))

    def when(self, hidden: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return 4 / math.pi * torch.asin(torch.sqrt(hidden / (1 - self.eps) / 2))


@SCHEDULES.register("cosine-squared")
@dataclass(frozen=True)
class CosineSquared:
    """α_t = ε + (1 − ε) cos²(πt/2): slow at both ends. [MDLM]"""

    eps: float = 1e-3  # share still visible at t = 1

    def __post_init__(self) -> None:
        check_share("eps", self.eps)

    def at(self, t: Float[Tensor, "*b"]) -> Level:
        check_times(t)
        angle = math.pi / 2 * t
        hidden = (1 - self.eps) * torch.sin(angle) ** 2
        alpha = self.eps + (1 - self.eps) * torch.cos(angle) ** 2
        return Level(alpha, hidden, (1 - self.eps) * math.pi / 2 * torch.sin(2 * angle).clamp(min=0))

    def when(self, hidden: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return 2 / math.pi * torch.asin(torch.sqrt((hidden / (1 - self.eps)).clamp(max=1)))


@SCHEDULES.register("linear")
@dataclass(frozen=True)
class LinearSigma:
    """σ_t = low + (high − low) t: the total noise grows linearly. [MDLM]"""

    low: float = 1e-3  # σ at t = 0
    high: float = 7.0  # σ at t = 1

    def __post_init__(self) -> None:
        check_sigmas(self.low, self.high)

    def at(self, t: Float[Tensor, "*b"]) -> Level:
        check_times(t)
        sigma = self.low + (self.high - self.low) * t
        alpha = torch.exp(-sigma)
        return Level(alpha, -torch.expm1(-sigma), (self.high - self.low) * alpha)

    def when(self, hidden: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return (-torch.log1p(-hidden) - self.low) / (self.high - self.low)


@SCHEDULES.register("geometric")
@dataclass(frozen=True)
class Geometric:
    """σ_t = low^(1−t) high^t: the logarithm of the noise grows linearly. [SEDD]"""

    low: float = 1e-4  # σ at t = 0
    high: float = 20.0  # σ at t = 1

    def __post_init__(self) -> None:
        check_sigmas(self.low, self.high)
        if self.low == 0:
            raise UserError("a geometric schedule needs low > 0; saw 0.")

    def at(self, t: Float[Tensor, "*b"]) -> Level:
        check_times(t)
        growth = math.log(self.high / self.low)
        sigma = self.low * torch.exp(growth * t)
        alpha = torch.exp(-sigma)
        return Level(alpha, -torch.expm1(-sigma), growth * sigma * alpha)

    def when(self, hidden: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return torch.log(-torch.log1p(-hidden) / self.low) / math.log(self.high / self.low)


@SCHEDULES.register("polynomial")
@dataclass(frozen=True)
class Polynomial:
    """α_t = 1 − t^power: power 1 is log-linear with ε = 0. [MD4]"""

    power: float = 2.0  # at least 1; the weight of the bound is power/t

    def __post_init__(self) -> None:
        if not 1 <= self.power < math.inf:
            raise UserError(f"the power of a polynomial schedule must be at least 1; saw {self.power}.")

    def at(self, t: Float[Tensor, "*b"]) -> Level:
        check_times(t)
        hidden = t**self.power
        return Level(1 - hidden, hidden, self.power * t ** (self.power - 1))

    def when(self, hidden: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return hidden ** (1 / self.power)
