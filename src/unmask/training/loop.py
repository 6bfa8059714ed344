"""The loop: `updates` yields after every update, and the caller prints, evaluates, saves or stops.

It trains everything: `train` gives it the batches of a text objective, `tuning.tune` those of labels or numbers.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.objective import Nats
from unmask.errors import UserError
from unmask.model.backbone import Backbone
from unmask.model.denoiser import Denoiser
from unmask.model.learner import Learner
from unmask.processes.team import Alone, Team
from unmask.random import seed_of
from unmask.text.row import Rows
from unmask.training import ema, noise, optim
from unmask.training.phases import Phase, sight
from unmask.training.settings import Train

TRAIN, DROPOUT, VALID = 0, 1, 2  # uses of random numbers that must not share any
L = TypeVar("L", bound=Learner)


@dataclass
class State(Generic[L]):
    """Everything that a step changes."""

    learner: L  # the network, with its learned parts
    optimizer: optim.Updates
    shadow: list[Tensor] = field(default_factory=list)  # with EMA: averaged weights, in the order of the learned ones
    memory: Tensor | None = None  # carried from step to step, for this process's rows

    @property
    def network(self) -> Backbone:
        return self.learner.backbone


class Batch(NamedTuple):
    """What a step learns from, in this process."""

    rows: int
    counted: Int[Tensor, ""]  # the tokens, or texts, by which nats are divided
    inputs: Callable[[slice], Mapping[str, Any]]  # of a forward pass of some of the rows


@dataclass(frozen=True)
class UpdatePlan:
    """The steps of a training."""

    optim: optim.Optim
    seed: int
    start: int  # the first step that is done now
    stop: int  # one after the last
    since: int = 0  # the first step of the learning rate's schedule


@dataclass
class Sums:
    """Sums over the forward passes of a step."""

    nats: Float[Tensor, "2"]  # loss and bound
    seen: dict[str, Tensor] = field(default_factory=dict)  # for the objective's state
    memory: list[Tensor] = field(default_factory=list)

    def add(self, nats: Nats, memory: Tensor | None) -> None:
        self.nats += torch.stack((nats.loss.detach().sum(), nats.bound.detach().sum()))
        for name, value in nats.seen.items():
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
    tokens: int  # of the whole batch; of labels the texts
    seconds: float  # of this step


class Diverged(UserError):
    """The loss or the gradient is NaN or infinite."""


def begin(denoiser: Denoiser, settings: Train, team: Team = Alone()) -> State[Denoiser]:
    """The state before the first step of a phase."""
    denoiser.train().choose_learned()
    team.place(denoiser)
    denoiser.state = {name: value.to(team.device) for name, value in denoiser.state.items()}
    shadow = ema.begin_average(p for _, p in denoiser.learned()) if settings.optim.ema else []
    return State(denoiser, settings.optim.updates(denoiser), shadow)


def train(
    state: State[Denoiser],
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

    def noisy(step: int) -> Batch:
        rows = batch(step)
        x0, real = rows.tokens.to(team.device), rows.real.to(team.device)
        frozen, lengths = (None if one is None else one.to(team.device) for one in (rows.frozen, rows.lengths))
        width, first = x0.shape[1], team.rank * len(x0)  # this process's first row in the whole batch
        drawn = noise.draw(settings.optim.batch, width, seed=settings.seed, step=step, use=TRAIN).to(team.device)
        allowed = sight(phase, step, width)
        before = None if rows.begins else state.memory

        def inputs(part: slice) -> dict[str, Any]:
            return {
                "x0": x0[part],
                "noise": drawn.rows(slice(first + part.start, first + part.stop)),
                "mask": mask,
                "frozen": None if frozen is None else frozen[part],
                "lengths": None if lengths is None else lengths[part],
                "allowed": None if allowed is None else allowed.to(team.device),
                "memory": None if before is None else before[part],
            }

        return Batch(len(x0), phase.objective.counted(real), inputs)

    plan = UpdatePlan(settings.optim, settings.seed, phase.start if start is None else start, phase.stop, phase.start)
    return updates(state, noisy, plan, team)


def updates(
    state: State[Any], batch: Callable[[int], Batch], plan: UpdatePlan, team: Team = Alone()
) -> Iterator[Progress]:
    """The loop of every training: the gradients of a batch are accumulated, then the weights are updated."""
    module, settings = team.wrap(state.learner), plan.optim
    parameters = [p for _, p in state.learner.learned()]
    for step in range(plan.start, plan.stop):
        began = time.perf_counter()
        state.learner.train()
        sums, total = gradients(module, batch(step), step, plan, team)
        loss, bound = float(sums.nats[0]), float(sums.nats[1])
        norm = float(optim.clip(parameters, settings.clip))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise Diverged(f"the loss became {loss} (gradient norm {norm}) at step {step + 1}, batch {step}")
        lr = optim.learning_rate(step - plan.since, steps=plan.stop - plan.since, optim=settings)
        optim.set_learning_rate(state.optimizer, lr)
        state.optimizer.step()
        state.optimizer.zero_grad()
        if state.shadow:
            ema.update(state.shadow, parameters, n=step - plan.since + 1, decay=settings.ema)
        state.learner.advance(sums.seen)
        state.memory = torch.cat(sums.memory) if sums.memory else None
        yield Progress(step + 1, loss, bound, norm, lr, total, time.perf_counter() - began)


def gradients(module: Callable[..., Any], batch: Batch, step: int, plan: UpdatePlan, team: Team) -> tuple[Sums, int]:
    """Accumulate the gradients of a step; returns loss and bound per token, and the tokens of all processes."""
    total = team.sum(batch.counted).clamp(min=1)  # a batch may have nothing to count
    sums = Sums(torch.zeros(2, device=team.device))
    size = plan.optim.micro or batch.rows
    for low in range(0, batch.rows, size):
        part = slice(low, min(low + size, batch.rows))
        torch.manual_seed(seed_of(plan.seed, step, DROPOUT, team.rank * batch.rows + low))
        with team.passing(module, last=part.stop == batch.rows):
            nats, memory = module(**batch.inputs(part))
            # Gradients of several processes are averaged, so each is scaled by their number.
            (nats.loss.sum() * (team.world / total)).backward()
        sums.add(nats, memory)
    sums.nats = team.sum(sums.nats) / total
    sums.seen = {name: team.sum(value) for name, value in sums.seen.items()}
    return sums, int(total)
