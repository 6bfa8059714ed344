"""Phases: a run has one, or, with the recipe `warm`, an autoregressive phase and then one with its objective."""

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
    anneal: int = 0  # steps over which attention grows from causal to both sides

    @property
    def steps(self) -> int:
        return self.stop - self.start


def phases(settings: Train, *, step: int = 0, began: int | None = None) -> tuple[Phase, ...]:
    """The phases of a run, in order; a later phase starts from the weights of the previous one.

    A run that has come to `step`, in the phase that `began` there, may have another number of steps than before: a
    phase that has begun stays where it began.
    """
    objective = settings.objective.for_steps(settings.steps)
    if settings.recipe != "warm":
        return (Phase(0, settings.steps, objective, settings.warm.anneal if settings.init else 0),)
    split = min(max(1, round(settings.warm.share * settings.steps)), settings.steps - 1)
    if began is not None:
        split = began or max(split, step)
    return (
        Phase(0, split, Autoregressive()),
        Phase(split, settings.steps, objective, settings.warm.anneal),
    )


def check_directions(settings: Train, spec: Spec) -> None:
    """Refuse an objective that needs to look in a direction in which the network of a run cannot."""
    for phase in phases(settings):
        spec.sized(vocab=spec.vocab, length=spec.length, causal=phase.objective.facts.causal)


def spec_of(settings: Train, phase: Phase, *, vocab: int) -> Spec:
    """The spec of a phase that starts without a checkpoint."""
    spec = settings.model.from_autoregressive() if settings.recipe == "warm" else settings.model
    return spec.sized(vocab=vocab, length=settings.text.length, causal=phase.objective.facts.causal)


def continue_spec(before: Spec, settings: Train, phase: Phase) -> Spec:
    """The spec of a phase that starts from given weights: as the objective looks at text, otherwise unchanged."""
    facts = phase.objective.facts
    spec = before.sized(vocab=before.vocab, length=settings.text.length, causal=facts.causal)
    if "two streams" in facts.gives:
        spec = spec.in_place()
    return replace(spec, dropout=settings.model.dropout)


def sight(phase: Phase, step: int, length: int) -> Bool[Tensor, "l l"] | None:
    """The attention mask during `anneal`: the window ahead grows from nothing to the whole row, or to a block.

    None: the architecture's own rule.
    """
    done = step - phase.start
    if done >= phase.anneal:
        return None
    ahead = min(length, phase.objective.block or length) * (done + 1) // (phase.anneal + 1)
    return torch.ones(length, length, dtype=torch.bool).tril(ahead)
