"""The loop: `updates` yields after every update, and the caller prints, evaluates, saves or stops.

`train` is the loop with the objective of a phase; `tuning.tune` and `classifier.train_head` are the same with a head.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.diffusion.objective import Nats
from unmask.errors import UserError
from unmask.model.backbone import Backbone
from unmask.model.denoiser import Denoiser
from unmask.processes.team import Alone, Team
from unmask.random import seed_of
from unmask.text.row import Rows
from unmask.training import ema, noise, optim
from unmask.training.phases import Phase, sight
from unmask.training.settings import Train

TRAIN, DROPOUT, VALID = 0, 1, 2  # uses of random numbers that must not share any


def given(rows: Rows) -> tuple[Bool[Tensor, "b l"] | None, Int[Tensor, " b"] | None]:
    """The tokens of a batch that are never hidden, and the lengths of its rows; None: no token, whole rows."""
    return rows.frozen, rows.lengths


@dataclass
class State:
    """Everything that a step changes."""

    denoiser: Denoiser  # the network, with the parts and state of its objective
    optimizer: optim.Updates
    shadow: list[Tensor]  # averaged weights, in the order of the parameters; empty without EMA
    memory: Tensor | None = None  # carried from step to step, for this process's rows

    @property
    def module(self) -> Denoiser:
        return self.denoiser

    @property
    def network(self) -> Backbone:
        return self.denoiser.backbone


@dataclass
class Sums:
    """Sums over the forward passes of a step."""

    nats: Float[Tensor, "2"]  # loss and bound
    seen: dict[str, Tensor] = field(default_factory=dict)  # for the objective's state
    memory: list[Tensor] = field(default_factory=list)

    def add(self, found: Nats, memory: Tensor | None) -> None:
        self.nats += torch.stack((found.loss.detach().sum(), found.bound.detach().sum()))
        for name, value in found.seen.items():
            self.seen[name] = self.seen.get(name, 0) + value.detach()
        if memory is not None:
            self.memory.append(memory)


@dataclass(frozen=True)
class Progress:
    """Metrics of one update."""

    step: int  # updates so far
    loss: float  # the minimised loss, nats per token
    bound: float  # an unbiased estimate of the bound (of the likelihood for ar), nats per token
    norm: float  # gradient norm before clipping
    lr: float
    tokens: int  # of the whole batch
    seconds: float  # of this step


class Diverged(UserError):
    """The loss or the gradient is NaN or infinite."""


def begin(denoiser: Denoiser, settings: Train, team: Team = Alone()) -> State:
    """The state before the first step of a phase."""
    denoiser.train().requires_grad_(True)
    for parameter in denoiser.backbone.idle:  # DDP waits for the gradient of every parameter that may have one
        parameter.requires_grad_(False)
    team.place(denoiser)
    denoiser.state = {name: value.to(team.device) for name, value in denoiser.state.items()}
    shadow = ema.begin_average(denoiser.parameters()) if settings.optim.ema else []
    return State(denoiser, settings.optim.updates(denoiser), shadow)


def train(
    state: State,
    phase: Phase,
    settings: Train,
    batch: Callable[[int], Rows],
    *,
    mask: int,
    start: int | None = None,
    team: Team = Alone(),
) -> Iterator[Progress]:
    """Train from step `start` to the end of a phase; `batch(step)` gives this process's rows of a step."""
    state.network.recompute = settings.run.checkpointing
    if settings.run.compile:
        state.network.compile(dynamic=True)
    module = team.wrap(state.denoiser)
    parameters = list(state.denoiser.parameters())

    def learn(step: int) -> Gain:
        state.denoiser.train()
        sums, tokens = gradients(state, module, batch(step), step, phase, settings, mask=mask, team=team)

        def advance() -> None:
            if state.shadow:
                ema.update(state.shadow, parameters, n=step - phase.start + 1, decay=settings.optim.ema)
            state.denoiser.advance(sums.seen)
            state.memory = torch.cat(sums.memory) if sums.memory else None

        return Gain(float(sums.nats[0]), float(sums.nats[1]), tokens, advance)

    first = phase.start if start is None else start
    yield from updates(state, learn, settings.optim, range(first, phase.stop), since=phase.start)


@runtime_checkable
class Trainable(Protocol):
    """What updates change: the parameters of a module, by an optimizer."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def optimizer(self) -> optim.Updates: ...


@dataclass(frozen=True)
class Gain:
    """What a step has learned, before its update."""

    loss: float
    bound: float
    tokens: int  # by which both were divided; of a classifier texts
    advance: Callable[[], None] = lambda: None  # what changes after the update


def updates(
    current: Trainable, learn: Callable[[int], Gain], settings: optim.Optim, steps: range, *, since: int = 0
) -> Iterator[Progress]:
    """The loop of every training: `learn` accumulates the gradients of a step, then the weights are updated.

    The learning rate is that of a run from step `since` to the end of `steps`.
    """
    parameters = list(current.module.parameters())
    for step in steps:
        began = time.perf_counter()
        gain = learn(step)
        norm = float(optim.clip(parameters, settings.clip))
        if not (math.isfinite(gain.loss) and math.isfinite(norm)):
            raise Diverged(f"the loss became {gain.loss} (gradient norm {norm}) at step {step + 1}, batch {step}")
        lr = optim.learning_rate(step - since, steps=steps.stop - since, optim=settings)
        optim.set_learning_rate(current.optimizer, lr)
        current.optimizer.step()
        current.optimizer.zero_grad()
        gain.advance()
        yield Progress(step + 1, gain.loss, gain.bound, norm, lr, gain.tokens, time.perf_counter() - began)


def gradients(
    state: State,
    module: Callable[..., Any],
    rows: Rows,
    step: int,
    phase: Phase,
    settings: Train,
    *,
    mask: int,
    team: Team,
) -> tuple[Sums, int]:
    """Accumulate the gradients of a step; returns loss and bound per token and the tokens of all processes."""
    x0, real = rows.tokens.to(team.device), rows.real.to(team.device)
    frozen, lengths = (None if one is None else one.to(team.device) for one in given(rows))
    total = team.sum(phase.objective.counted(real)).clamp(min=1)  # a batch may have nothing to count
    drawn = noise.draw(settings.optim.batch, x0.shape[1], seed=settings.seed, step=step, use=TRAIN).to(team.device)
    first = team.rank * len(x0)  # this process's first row in the whole batch
    allowed = sight(phase, step, x0.shape[1])
    allowed = None if allowed is None else allowed.to(team.device)
    before = None if rows.begins else state.memory
    sums = Sums(torch.zeros(2, device=x0.device))
    size = settings.optim.micro or len(x0)
    for low in range(0, len(x0), size):
        part = slice(low, min(low + size, len(x0)))
        whole = slice(first + part.start, first + part.stop)
        if settings.model.dropout:
            torch.manual_seed(seed_of(settings.seed, step, DROPOUT, whole.start))
        with team.passing(module, last=part.stop == len(x0)):
            found, memory = module(
                x0[part],
                drawn.rows(whole),
                mask=mask,
                frozen=None if frozen is None else frozen[part],
                lengths=None if lengths is None else lengths[part],
                allowed=allowed,
                memory=None if before is None else before[part],
            )
            # Gradients of several processes are averaged, so each is scaled by their number.
            (found.loss.sum() * (team.world / total)).backward()
        sums.add(found, memory)
    sums.nats = team.sum(sums.nats) / total
    sums.seen = {name: team.sum(value) for name, value in sums.seen.items()}
    return sums, int(total)
