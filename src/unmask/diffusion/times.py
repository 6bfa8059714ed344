"""Times t in (0, 1] and numbers of masks k in 1..l for training rows, and grids for samplers.

Every function maps given uniforms in [0, 1) to times, so the same uniforms give the same times.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.registry import Registry

MOST_STEPS = 1_000_000  # of a process: a grid of times is a table


def check_uniforms(u: Tensor) -> None:
    if u.numel() == 0:
        raise UserError("an empty batch: there are no rows to draw times for.")
    if not bool(((u >= 0) & (u <= 1)).all()):
        raise UserError(f"uniform numbers must lie in [0, 1]; saw {u.min().item()} to {u.max().item()}.")


def stratified_times(u: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """(u_i + i)/b: one time in each of b equal cells. The reference calls it antithetic. [MDLM]"""
    check_uniforms(u)
    cell = torch.arange(len(u), dtype=u.dtype, device=u.device)
    return (u / len(u) + cell / len(u)) % 1


def away_from_zero(u: Float[Tensor, " b"], *, eps: float = 1e-3) -> Float[Tensor, " b"]:
    """ε + (1 − ε) u: keeps the weight 1/t of the bound finite; times below ε are never drawn. [MDLM]"""
    if not 0 <= eps < 1:
        raise UserError(f"eps must lie in [0, 1); saw {eps}.")
    return (1 - eps) * u + eps


def steps(u: Float[Tensor, " b"], *, total: int) -> Int[Tensor, " b"]:
    """A step i of the T-step process for each u: uniform over 1..T, the first step included."""
    check_total(total)
    check_uniforms(u)
    return (u * total).long().clamp(max=total - 1) + 1


def counts(u: Float[Tensor, " b"], free: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """A number of masks k for each row: uniform over 1..free. With `stratified_times(u)` the k are stratified too."""
    check_uniforms(u)
    if not bool((free >= 1).all()):
        raise UserError("every row needs at least one position that may be masked; a row has none.")
    return torch.minimum((u * free).long(), free - 1) + 1


def grid(total: int, *, last: float = 0.0) -> Float[Tensor, " steps"]:
    """T + 1 times from 1 down to `last`, evenly spaced, in float64. The reference ends at 1e-5."""
    check_total(total)
    if not 0 <= last < 1:
        raise UserError(f"a grid must end in [0, 1); saw {last}.")
    return torch.linspace(1, last, total + 1, dtype=torch.float64)


def check_total(total: int | None) -> None:
    if total is None:
        return
    if total < 1:
        raise UserError(f"the number of steps must be at least 1; saw {total}.")
    if total > MOST_STEPS:
        raise UserError(f"the number of steps may be {MOST_STEPS:,} at most; saw {total:,}.")


class When(NamedTuple):
    """The times of some rows, and their density."""

    t: Float[Tensor, " b"]  # in (0, 1)
    density: Float[Tensor, " b"]  # of t; the weight of the bound is divided by it


@runtime_checkable
class Times(Protocol):
    """A rule that maps stratified uniforms to times."""

    by_count: ClassVar[bool] = False  # the uniform chooses a number of masks, not a time

    def at(self, even: Float[Tensor, " b"]) -> When:
        """The times of some rows."""

    @staticmethod
    def precise() -> "Times":
        """The rule of smallest variance for the same bound."""
        return Stratified()


TIMES: Registry[Times] = Registry("rule for times", inline=True)


@TIMES.register("stratified", "t uniform, spread evenly over a batch")
@dataclass(frozen=True)
class Stratified(Times):
    """t uniform over [low, 1]."""

    low: float = 0.0  # smallest t; the reference code draws none below 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.low < 1:
            raise UserError(f"low must be a share from 0 to 1, not {self.low}.")

    def at(self, even: Float[Tensor, " b"]) -> When:
        return When(away_from_zero(even, eps=self.low), torch.full_like(even, 1 / (1 - self.low)))


@TIMES.register("cubed", "t = u³: more rows with little noise, where few tokens pay much")
@dataclass(frozen=True)
class Cubed(Times):
    """t the cube of a uniform. Where a share t of the tokens pays about log(1/t)/t each, its errors are small."""

    def at(self, even: Float[Tensor, " b"]) -> When:
        root = even.clamp(1e-6, 1)
        return When(root**3, 1 / (3 * root**2))


@TIMES.register("count", "the number of masks uniform over 1..l: the smallest variance")
@dataclass(frozen=True)
class Count(Times):
    """The number of masks k uniform over 1..l, instead of a time. [RADD]"""

    by_count: ClassVar[bool] = True

    def at(self, even: Float[Tensor, " b"]) -> When:
        return When(even, torch.ones_like(even))


@TIMES.register("clipped", "the share of masks mostly within low..high: a smaller variance of the loss")
@dataclass(frozen=True)
class Clipped(Times):
    """The number of masks from a share within [low, high], mixed with a share of all of them. [BD3-LM]

    A rule that never drew the other numbers would leave them out of the bound: with `floor` above 0, and each draw
    weighted by its density, the bound stays a bound.
    """

    by_count: ClassVar[bool] = True

    low: float = 0.45  # smallest share of masks, but for the floor
    high: float = 0.95  # largest share
    floor: float = 0.1  # share of the draws that may have any number of masks

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise UserError(f"clipped times need 0 <= low < high <= 1; saw low {self.low}, high {self.high}.")
        if not 0 < self.floor <= 1:
            raise UserError(
                f"the floor of clipped times must be above 0 and at most 1, or some numbers of masks would miss "
                f"in the bound; saw {self.floor}."
            )

    def at(self, even: Float[Tensor, " b"]) -> When:
        inner = (even - self.floor) / max(1 - self.floor, 1e-9)
        t = torch.where(even < self.floor, even / self.floor, self.low + (self.high - self.low) * inner)
        t = t.clamp(0, 1 - 1e-7)
        within = (t >= self.low) & (t <= self.high)
        density = self.floor + torch.where(within, (1 - self.floor) / (self.high - self.low), 0.0)
        return When(t, density.to(even.dtype))

    @staticmethod
    def precise() -> Times:
        return Count()


@TIMES.register("bell", "logit t normal: most rows about half hidden")
@dataclass(frozen=True)
class Bell(Times):
    """logit t normal, mixed with a share of uniform t that keeps 1/density bounded.

    Uniforms below `floor` become uniform times, the others go through the inverse of the normal CDF, so the mixture
    is stratified too. Each time is weighted by the density of the mixture, whichever part it came from.
    """

    mean: float = 0.0  # of logit t
    spread: float = 1.0  # standard deviation of logit t
    floor: float = 0.2  # share of uniform t, which bounds the weights

    def __post_init__(self) -> None:
        if self.spread <= 0:
            raise UserError(f"the spread of bell times must be above 0, not {self.spread}.")
        if not 0 <= self.floor <= 1:
            raise UserError(f"the floor of bell times must be a share from 0 to 1, not {self.floor}.")

    def at(self, even: Float[Tensor, " b"]) -> When:
        floor, mean, spread = self.floor, self.mean, self.spread
        wide = even.double()
        tiny = 1e-9
        inner = ((wide - floor) / max(1 - floor, tiny)).clamp(tiny, 1 - tiny)
        t = torch.sigmoid(mean + spread * torch.special.ndtri(inner))
        t = torch.where(wide < floor, wide / max(floor, tiny), t).clamp(tiny, 1 - tiny)
        z = (torch.logit(t) - mean) / spread
        normal = torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5
        density = floor + (1 - floor) * normal / (spread * t * (1 - t))
        return When(t.to(even.dtype), density.to(even.dtype))
