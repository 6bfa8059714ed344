"""Fitting: which samplers can draw from a model, and in which process.

A sampler and a process name what they need of a model (`Policy.needs`, `Process.needs`); an objective names what a
network trained with it gives (`facts.gives`). A sampler fits where all its needs are given. Its process is the one
that shares a need with it and, of those that fit the objective, has the most needs: a block model is drawn in blocks.
"""

from typing import Any

from unmask.diffusion.objective import Objective
from unmask.errors import UserError, unknown
from unmask.sampling.policy import POLICIES, Policy, sampler_name
from unmask.sampling.process import PROCESSES


def process_for(needs: frozenset[str], gives: frozenset[str]) -> Any:
    """The process, a class, in which a sampler draws from a model that gives these things; None: it does not fit."""
    if not needs <= gives:
        return None
    serving = [kind for kind in map(PROCESSES.__getitem__, PROCESSES) if kind.needs <= gives]
    return max((kind for kind in serving if kind.needs & needs), key=lambda one: len(one.needs), default=None)


def samplers_for(objective: Objective) -> list[str]:
    """The samplers that fit an objective, its own reverse process first."""
    gives = objective.facts.gives
    fitting = [name for name in POLICIES if process_for(POLICIES[name].needs, gives) is not None]
    return sorted(fitting, key=lambda name: name != objective.facts.sampler)


def kind_for(objective: Objective, sampler: str | Policy) -> Any:
    """The class of a sampler; refuses one that does not fit."""
    name = sampler_name(sampler).partition(":")[0]
    if isinstance(sampler, str) and name not in POLICIES:
        raise unknown("sampler", name, samplers_for(objective))
    kind = POLICIES[name] if isinstance(sampler, str) else type(sampler)
    if process_for(kind.needs, objective.facts.gives) is None:
        lacks = ", ".join(sorted(kind.needs - objective.facts.gives))
        raise UserError(
            f"the sampler {name!r} is not for this model: it needs {lacks}, and the objective {objective.name} gives "
            f"{', '.join(sorted(objective.facts.gives))}. Known for it: {', '.join(samplers_for(objective))}."
        )
    return kind
