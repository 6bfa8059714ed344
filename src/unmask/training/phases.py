"""Phases: a run is one, or, with the recipe `warm`, an autoregressive one and then the objective's own."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.model.backbones.transformer import Architecture
from unmask.training.settings import Objective, Train


@dataclass(frozen=True)
class Phase:
    """Some steps of a run with one objective."""

    start: int  # first step
    stop: int  # one behind the last
    objective: Objective
    anneal: int = 0  # steps over which a network that was causal comes to look ahead

    @property
    def steps(self) -> int:
        return self.stop - self.start


def phases(settings: Train) -> tuple[Phase, ...]:
    """The phases of a run, in order; a later one begins with the weights of the one before."""
    if settings.recipe == "plain":
        return (Phase(0, settings.steps, settings.objective, settings.warm.anneal if settings.init else 0),)
    split = min(max(1, round(settings.warm.share * settings.steps)), settings.steps - 1)
    first = replace(settings.objective, name="ar", weight="bound")
    return (
        Phase(0, split, first),
        Phase(split, settings.steps, settings.objective, settings.warm.anneal),
    )


def architecture(settings: Train, phase: Phase, *, vocab: int) -> Architecture:
    """The network of a phase, where no checkpoint says it."""
    shape, ar = settings.model, phase.objective.name == "ar"
    return Architecture(
        vocab=vocab,
        length=settings.text.length,
        width=shape.width,
        blocks=shape.blocks,
        heads=shape.heads,
        cond=shape.cond,
        dropout=shape.dropout,
        tied=shape.tied,
        time_conditioning=shape.time_conditioning,
        causal=ar,
        reads_before=ar or shape.reads_before or settings.recipe == "warm",
    )


def continued(before: Architecture, settings: Train, phase: Phase) -> Architecture:
    """The network of a phase that begins with given weights: causal or not by the objective, else as it was.

    A network that read position i's prediction at i − 1 goes on doing so.
    """
    ar = phase.objective.name == "ar"
    return replace(
        before,
        length=settings.text.length,
        dropout=settings.model.dropout,
        causal=ar,
        reads_before=ar or before.reads_before,
    )


def sight(phase: Phase, step: int, length: int) -> Bool[Tensor, "l l"] | None:
    """Who sees whom while the network learns to look ahead: a window that grows from nothing to the whole row.

    None: the architecture's own rule.
    """
    done = step - phase.start
    if done >= phase.anneal:
        return None
    ahead = length * (done + 1) // (phase.anneal + 1)
    return torch.ones(length, length, dtype=torch.bool).tril(ahead)
