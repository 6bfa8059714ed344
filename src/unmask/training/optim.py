"""Optimizers: components with their own fields. The learning rate is a pure function of the step.

Each file of `optimizers/` has one. `Optim` holds what all have: batches, the learning rate's schedule, clipping, the
moving average of the weights, and AdamW's own numbers, since each leaves some weights to AdamW.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.backbone import Group, Spec
from unmask.model.learner import Learner
from unmask.processes.sharding import local, whole
from unmask.registry import Registry
from unmask.settings import at_least, check_shares


@runtime_checkable
class Updates(Protocol):
    """An optimizer at work."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameters with their learning rate; `scale` is a factor on it."""

    @property
    def state(self) -> Any:
        """What it remembers of each parameter."""

    def step(self) -> None:
        """Change the parameters by their gradients."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def memory(self, p: nn.Parameter) -> dict[str, Tensor]:
        """What it remembers of a parameter before the first step."""


@dataclass(frozen=True)
class Optim(ABC):
    """An optimizer, its learning rate, and the moving average of the weights."""

    name: ClassVar[str]
    registry: ClassVar[Registry[Any]]
    rate: ClassVar[float]  # peak learning rate of a new network
    tuning_rate: ClassVar[float] = 1e-3  # and of one that has learned before

    batch: int = 32  # rows per step, over all processes
    micro: int = 0  # rows per forward pass; 0: all rows of the process
    lr: float = 0.0  # peak learning rate; 0: 5e-3 for muon, 1e-3 for adamw, with --init by the network
    schedule: Literal["constant", "cosine", "linear"] = "cosine"  # learning rate after the warm-up
    warmup: int = 100  # steps of linear warm-up
    floor: float = 0.1  # share of lr at the last step, for cosine and linear
    reference: bool = False  # the first update has learning rate 0, as in the reference code
    beta1: float = 0.9  # decay of AdamW's mean gradient
    beta2: float = 0.95  # decay of AdamW's mean squared gradient
    eps: float = 1e-8  # added to AdamW's denominator
    weight_decay: float = 0.0  # weight decay, on matrices only
    clip: float = 1.0  # largest gradient norm; 0: no clipping
    ema: float = 0.999  # decay of the averaged weights, which are evaluated and exported; 0: none

    def __post_init__(self) -> None:
        at_least(1, batch=self.batch)
        at_least(0, micro=self.micro, lr=self.lr, warmup=self.warmup, weight_decay=self.weight_decay, clip=self.clip)
        at_least(0, eps=self.eps)
        check_shares(floor=self.floor, beta1=self.beta1, beta2=self.beta2, ema=self.ema)
        if max(self.beta1, self.beta2) == 1:
            raise UserError("beta1 and beta2 must be below 1: at 1 a mean takes in no gradient.")

    def settled(self, usual: str, *, tuned: bool) -> "Optim":
        """The optimizer with its learning rate; `usual` is the objective's, `tuned`: it starts from weights."""
        return replace(self, lr=self.lr or (self.tuning_rate if tuned else self.rate))

    @abstractmethod
    def updates(self, learner: Learner) -> Updates:
        """The optimizer of a network and its parts."""

    def flops(self, spec: Spec) -> float:
        """FLOPs of one update of a network, where they matter."""
        return 0.0


OPTIMIZERS: Registry[Optim] = Registry(
    "optimizer", room="unmask.training.optimizers", group="unmask.optimizers", shares=True
)


class AdamWUpdates:
    """Updates of torch's fused AdamW."""

    def __init__(self, learner: Learner, settings: Optim) -> None:
        betas = settings.beta1, settings.beta2
        groups = parameter_groups(learner, settings)
        self.inner = torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        return self.inner.state

    def step(self) -> None:
        self.inner.step()

    def zero_grad(self) -> None:
        self.inner.zero_grad(set_to_none=True)

    def memory(self, p: nn.Parameter) -> dict[str, Tensor]:
        moments = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.zeros((), device=p.device), **moments}


def learning_rate(step: int, *, steps: int, optim: Optim) -> float:
    """The learning rate of update `step` (0, 1, ... steps − 1): linear warm-up, then the schedule.

    The first update has lr/warmup; with `reference` it has 0, and the schedule is delayed by one update.
    """
    done = step if optim.reference else step + 1
    if done < optim.warmup:
        return optim.lr * done / optim.warmup
    if optim.schedule == "constant":
        return optim.lr
    passed = min(1.0, (done - optim.warmup) / max(1, steps - optim.warmup))
    left = (1 + math.cos(math.pi * passed)) / 2 if optim.schedule == "cosine" else 1 - passed
    return optim.lr * (optim.floor + (1 - optim.floor) * left)


def parameter_groups(learner: Learner, optim: Optim) -> list[dict[str, Any]]:
    """The network's parameter groups, and the parameters of its parts with decay on matrices only.

    A part may have a `rate`, a factor on the learning rate.
    """
    groups = list(learner.backbone.groups())
    rates = {name: float(getattr(part, "rate", 1.0)) for name, part in learner.parts.items()}
    for rate in sorted(set(rates.values())):
        own = [p for name, part in learner.parts.items() if rates[name] == rate for p in part.parameters()]
        groups.append(Group(tuple(p for p in own if p.ndim >= 2), lr=rate))
        groups.append(Group(tuple(p for p in own if p.ndim < 2), lr=rate, decay=False))
    return [
        {"params": list(one.parameters), "scale": one.lr, "weight_decay": optim.weight_decay if one.decay else 0.0}
        for one in groups
        if one.parameters
    ]


def set_learning_rate(updates: Updates, lr: float) -> None:
    for group in updates.param_groups:
        group["lr"] = lr * group["scale"]


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Clip the gradient to a norm of at most `limit` (0: no clipping); returns the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = whole(nn.utils.get_total_norm(gradients))
    if limit:
        torch._foreach_mul_([local(g) for g in gradients], torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm
