"""The loop: `train` yields after every update, and the caller prints, evaluates, saves or stops."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.backbones.transformer import Transformer
from unmask.processes.team import Alone, Team
from unmask.training import ema, noise, optim
from unmask.training.loss import Nats, counted, nats
from unmask.training.phases import Phase, sight
from unmask.training.settings import Train

TRAIN, DROPOUT, VALID = 0, 1, 2  # uses of randomness that must not meet


@runtime_checkable
class Rows(Protocol):
    """A batch: tokens, and which of them are real; the others are padding behind them."""

    @property
    def tokens(self) -> Int[Tensor, "b l"]: ...

    @property
    def real(self) -> Bool[Tensor, "b l"]: ...


@dataclass(frozen=True)
class State:
    """All that a step changes."""

    network: Transformer
    optimizer: torch.optim.AdamW
    shadow: list[Tensor]  # averaged weights, in the order of the parameters; empty without EMA


@dataclass(frozen=True)
class Progress:
    """What one update brought."""

    step: int  # updates so far
    loss: float  # what was minimised, nats a token
    bound: float  # an unbiased estimate of the bound (of the likelihood for ar), nats a token
    norm: float  # of the gradient, before it was clipped
    lr: float
    tokens: int  # of the whole batch
    seconds: float  # of this step


class Diverged(UserError):
    """The loss is no number any more."""


def begin(network: Transformer, settings: Train, team: Team = Alone()) -> State:  # noqa: B008
    """The state before the first step of a phase."""
    network = team.place(network.train().requires_grad_(True))
    parameters = list(network.parameters())
    shadow = ema.begin(parameters) if settings.optim.ema else []
    return State(network, optim.chosen(network, settings.optim), shadow)


def train(
    state: State,
    phase: Phase,
    settings: Train,
    batch: Callable[[int], Rows],
    *,
    mask: int,
    start: int | None = None,
    team: Team = Alone(),  # noqa: B008
) -> Iterator[Progress]:
    """Train from step `start` to the end of a phase; `batch(step)` gives this process's rows of a step."""
    state.network.recompute = settings.run.checkpointing
    if settings.run.compile:
        state.network.compile(dynamic=True)
    module = team.wrap(state.network)
    parameters = list(state.network.parameters())
    for step in range(phase.start if start is None else start, phase.stop):
        began = time.perf_counter()
        state.network.train()
        sums, tokens = gradients(module, batch(step), step, phase, settings, mask=mask, team=team)
        norm = optim.clip(parameters, settings.optim.clip)
        loss, bound, size = float(sums[0]), float(sums[1]), float(norm)
        if not (math.isfinite(loss) and math.isfinite(size)):
            raise Diverged(f"the loss became {loss} (gradient norm {size}) at step {step + 1}, batch {step}")
        lr = optim.learning_rate(step - phase.start, steps=phase.steps, optim=settings.optim)
        optim.set_learning_rate(state.optimizer, lr)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        if state.shadow:
            ema.update(state.shadow, parameters, n=step - phase.start + 1, decay=settings.optim.ema)
        yield Progress(step + 1, loss, bound, size, lr, tokens, time.perf_counter() - began)


def gradients(
    module: Callable[..., Tensor],
    rows: Rows,
    step: int,
    phase: Phase,
    settings: Train,
    *,
    mask: int,
    team: Team,
) -> tuple[Float[Tensor, "2"], int]:
    """Add up the gradients of a step; gives loss and bound a token, and the number of tokens, over all processes."""
    x0, real, padded = rows.tokens.to(team.device), rows.real.to(team.device), not bool(rows.real.all())
    total = team.sum(counted(real, phase.objective))
    drawn = noise.draw(settings.optim.batch, x0.shape[1], seed=settings.seed, step=step, use=TRAIN)
    even, u = (uniforms.to(team.device) for uniforms in drawn)
    first = team.rank * len(x0)  # this process's first row in the whole batch
    allowed = sight(phase, step, x0.shape[1])
    allowed = None if allowed is None else allowed.to(team.device)
    sums = torch.zeros(2, device=x0.device)
    size = settings.optim.micro or len(x0)
    for low in range(0, len(x0), size):
        part = slice(low, min(low + size, len(x0)))
        whole = slice(first + part.start, first + part.stop)
        if settings.model.dropout:
            torch.manual_seed(noise.mix(settings.seed, step, DROPOUT, whole.start))
        with team.passing(module, last=part.stop == len(x0)):
            found: Nats = nats(
                Looking(module, real[part].sum(1) if padded else None, allowed),
                x0[part],
                noise.when(even[whole], phase.objective),
                u[whole],
                phase.objective,
                mask=mask,
                frozen=~real[part] if padded else None,
            )
            # Gradients of several processes are averaged, so each counts for all of them.
            (found.loss.sum() * (team.world / total)).backward()
        sums += torch.stack((found.loss.detach().sum(), found.bound.sum()))
    return team.sum(sums) / total, int(total)


@dataclass(frozen=True)
class Looking:
    """A network that is told where rows end and who sees whom."""

    module: Callable[..., Tensor]
    lengths: Int[Tensor, " b"] | None
    allowed: Bool[Tensor, "l l"] | None

    def __call__(
        self, tokens: Int[Tensor, "b l"], sigma: Float[Tensor, " b"], rows: Int[Tensor, " n"]
    ) -> Float[Tensor, "n v"]:
        return self.module(tokens, sigma, rows, lengths=self.lengths, allowed=self.allowed)
