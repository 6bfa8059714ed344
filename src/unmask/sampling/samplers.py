"""Samplers by name, for the command line and the server."""

from collections.abc import Callable
from dataclasses import dataclass

from unmask.diffusion.schedule import LogLinear, Schedule
from unmask.errors import UserError, unknown
from unmask.sampling.policies.confidence import Leftmost, Ordered
from unmask.sampling.policies.parallel import Certificate, EntropyBound, Klass, Threshold
from unmask.sampling.policies.planned import Ancestral, FirstHitting, Groups
from unmask.sampling.policies.remask import Remask
from unmask.sampling.policies.reverse import Analytic, D3PMReverse
from unmask.sampling.policy import Policy

DEFAULT = "first-hitting"


@dataclass(frozen=True)
class Sampler:
    """How a name becomes a policy."""

    about: str  # one line for a list of samplers
    build: Callable[[Schedule, int], Policy] | None = None  # from a number of steps, if it has one
    build_free: Callable[[Schedule], Policy] | None = None  # without one


SAMPLERS = {
    "first-hitting": Sampler("exact: one token a call, in random order", None, lambda s: FirstHitting(s)),
    "ancestral": Sampler(
        "a grid of T steps, empty ones dropped", lambda s, n: Ancestral(n, s), lambda s: Ancestral(schedule=s)
    ),
    "groups": Sampler("random groups of growing size, one a call", lambda s, n: Groups(calls=n, schedule=s)),
    "confidence": Sampler(
        "the likeliest positions first",
        lambda s, n: Ordered("confidence", calls=n, schedule=s),
        lambda s: Ordered("confidence", schedule=s),
    ),
    "margin": Sampler(
        "positions with the clearest winner first",
        lambda s, n: Ordered("margin", calls=n, schedule=s),
        lambda s: Ordered("margin", schedule=s),
    ),
    "entropy": Sampler(
        "positions of lowest entropy first",
        lambda s, n: Ordered("entropy", calls=n, schedule=s),
        lambda s: Ordered("entropy", schedule=s),
    ),
    "left-to-right": Sampler(
        "the leftmost position first",
        lambda s, n: Leftmost(calls=n, schedule=s),
        lambda s: Leftmost(schedule=s),
    ),
    "draw-then-keep": Sampler(
        "draw everywhere, keep the likeliest: biased",
        lambda s, n: Ordered("confidence", calls=n, draw_first=True, schedule=s),
        lambda s: Ordered("confidence", draw_first=True, schedule=s),
    ),
    "threshold": Sampler("every position surer than 0.9 at once", None, lambda s: Threshold(schedule=s)),
    "certificate": Sampler("sets whose joint mode is certified", None, lambda s: Certificate(schedule=s)),
    "entropy-bound": Sampler("sets that share little information", None, lambda s: EntropyBound(schedule=s)),
    "klass": Sampler(
        "sure and settled positions at once", lambda s, n: Klass(calls=n, schedule=s), lambda s: Klass(schedule=s)
    ),
    "d3pm": Sampler("D3PM's own reverse step", lambda s, n: D3PMReverse(n, s), lambda s: D3PMReverse(schedule=s)),
    "analytic": Sampler("SEDD's analytic step", lambda s, n: Analytic(n, s), lambda s: Analytic(schedule=s)),
    "remask-cap": Sampler(
        "tokens are hidden again at a small steady rate",
        lambda s, n: Remask("cap", n, schedule=s),
        lambda s: Remask("cap", schedule=s),
    ),
    "remask-rescale": Sampler(
        "hidden again at a share of the greatest rate",
        lambda s, n: Remask("rescale", n, schedule=s),
        lambda s: Remask("rescale", schedule=s),
    ),
    "remask-conf": Sampler(
        "as many, but the least likely of them",
        lambda s, n: Remask("conf", n, schedule=s),
        lambda s: Remask("conf", schedule=s),
    ),
    "remask-loop": Sampler(
        "a while of mending when most is there",
        lambda s, n: Remask("loop", n, schedule=s),
        lambda s: Remask("loop", schedule=s),
    ),
    "remask-forward-backward": Sampler(
        "as much hidden again as a step reveals",
        lambda s, n: Remask("forward-backward", n, schedule=s),
        lambda s: Remask("forward-backward", schedule=s),
    ),
}


def named(name: str, *, steps: int | None = None, schedule: Schedule | None = None) -> Policy:
    """The policy of that name. `steps` is T of a grid, or the number of calls of the others.

    >>> named("ancestral", steps=64).law
    'grid-64'
    """
    if name not in SAMPLERS:
        raise unknown("sampler", name, SAMPLERS)
    sampler, schedule = SAMPLERS[name], schedule or LogLinear()
    if steps is None:
        if sampler.build_free is None:
            raise UserError(f"the sampler {name!r} needs a number of steps.")
        return sampler.build_free(schedule)
    if sampler.build is None:
        with_steps = ", ".join(key for key, value in SAMPLERS.items() if value.build)
        raise UserError(f"the sampler {name!r} finds its number of calls by itself; steps are for {with_steps}.")
    return sampler.build(schedule, steps)
