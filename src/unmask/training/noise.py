"""The randomness of a step: a pure function of (seed, step), the same however the rows are shared out.

Every process draws the uniforms of the whole batch and takes its own rows, so neither the number of processes nor
the accumulation changes them, and a resumed run needs nothing but its step.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.diffusion import schedule, times
from unmask.training.settings import Objective


@dataclass(frozen=True)
class Times:
    """When each row is looked at, and how often such a time is drawn."""

    t: Float[Tensor, " b"]  # in (0, 1); for the count of masks a uniform number that becomes k
    density: Float[Tensor, " b"]  # of t; the weight of the bound is divided by it

    def rows(self, chosen: slice) -> "Times":
        return Times(self.t[chosen], self.density[chosen])


def mix(*numbers: int) -> int:
    """A seed out of several numbers: neighbours end up far apart, and no two sets meet by adding up."""
    mixed = 0
    for number in numbers:  # the finalizer of splitmix64, once for each
        mixed = (mixed + 0x9E3779B97F4A7C15 + number) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        mixed ^= mixed >> 31
    return mixed >> 1


def draw(
    rows: int, length: int, *, seed: int, step: int, use: int = 0
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b l"]]:
    """The uniforms of a step: one a row, spread evenly over [0, 1), and one a token."""
    source = torch.Generator().manual_seed(mix(seed, step, use))
    even = times.stratified(torch.rand(rows, generator=source))
    return even, torch.rand(rows, length, generator=source)


def when(even: Float[Tensor, " b"], objective: Objective) -> Times:
    """Times out of evenly spread uniforms, by the rule that the settings name."""
    if objective.times == "bell":
        return bell(even, objective)
    low = objective.low
    return Times(times.away_from_zero(even, eps=low), torch.full_like(even, 1 / (1 - low)))


def bell(even: Float[Tensor, " b"], objective: Objective) -> Times:
    """logit t normal, mixed with a share of uniform t that keeps 1/density bounded.

    The first `floor` of the uniforms become uniform times, the others go through the inverse of the bell, so the
    mixture is stratified too; each time weighs by the density of the mixture, whichever half it came from.
    """
    floor, mean, spread = objective.bell_floor, objective.bell_mean, objective.bell_spread
    wide = even.double()
    tiny = 1e-9
    inner = ((wide - floor) / max(1 - floor, tiny)).clamp(tiny, 1 - tiny)
    t = torch.sigmoid(mean + spread * torch.special.ndtri(inner))
    t = torch.where(wide < floor, wide / max(floor, tiny), t).clamp(tiny, 1 - tiny)
    z = (torch.logit(t) - mean) / spread
    normal = torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5
    density = floor + (1 - floor) * normal / (spread * t * (1 - t))
    return Times(t.to(even.dtype), density.to(even.dtype))


def named_schedule(objective: Objective) -> schedule.Schedule:
    """The schedule of an objective; d3pm's T steps begin at nothing hidden and end at all hidden."""
    if objective.name == "d3pm" and objective.schedule == "log-linear":
        return schedule.LogLinear(eps=0)
    return schedule.named(objective.schedule)
