"""Phases: a run is one, or, with the recipe `warm`, an autoregressive one and then the objective's own."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.objective import Objective
from unmask.model.backbone import Spec
from unmask.training.settings import Train


@dataclass(frozen=True)
class Phase:
    """Some steps of a run with one objective."""

    start: int  # first step
    stop: int  # one after the last
    objective: Objective
    anneal: int = 0  # steps over which a network that was causal comes to look ahead

    @property
    def steps(self) -> int:
        return self.stop - self.start


def phases(settings: Train) -> tuple[Phase, ...]:
    """The phases of a run, in order; a later one begins with the weights of the one before."""
    if settings.recipe != "warm":
        return (Phase(0, settings.steps, settings.objective, settings.warm.anneal if settings.init else 0),)
    split = min(max(1, round(settings.warm.share * settings.steps)), settings.steps - 1)
    return (
        Phase(0, split, Autoregressive()),
        Phase(split, settings.steps, settings.objective, settings.warm.anneal),
    )


def spec_of(settings: Train, phase: Phase, *, vocab: int) -> Spec:
    """The network of a phase, where no checkpoint says it."""
    spec = settings.model.from_autoregressive() if settings.recipe == "warm" else settings.model
    return spec.sized(vocab=vocab, length=settings.text.length, causal=phase.objective.facts.causal)


def continued(before: Spec, settings: Train, phase: Phase) -> Spec:
    """The network of a phase that begins with given weights: causal or not by the objective, else as it was."""
    spec = before.sized(vocab=before.vocab, length=settings.text.length, causal=phase.objective.facts.causal)
    return replace(spec, dropout=settings.model.dropout)  # type: ignore[type-var]


def sight(phase: Phase, step: int, length: int) -> Bool[Tensor, "l l"] | None:
    """Who sees whom while the network learns to look ahead: a window that grows from nothing to the whole row.

    None: the architecture's own rule.
    """
    done = step - phase.start
    if done >= phase.anneal:
        return None
    ahead = length * (done + 1) // (phase.anneal + 1)
    return torch.ones(length, length, dtype=torch.bool).tril(ahead)
