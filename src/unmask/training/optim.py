"""The optimizer: fused AdamW, or Muon; the learning rate is a pure function of the step."""

import math
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.model.backbone import Backbone, Group
from unmask.processes import sharding
from unmask.processes.sharding import local, whole
from unmask.training.settings import Optim

POLYNOMIAL = 3.4445, -4.7750, 2.0315  # of x, x³ and x⁵: brings any x in (0.01, 1] near 1 in `ROUNDS` rounds
ROUNDS = 5
MOMENTUM = 0.95
SIZE = 0.2  # root mean square of an AdamW update, in units of the learning rate


def orthogonal(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """x with all singular values near 1 (0.7 to 1.2, unless they were tiny), by iterating a polynomial."""
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.mT).mT
    a, b, c = POLYNOMIAL
    x = x / (x.norm() + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


def flops(network: Backbone) -> float:
    """FLOPs of one update, two per multiply-add: a product with the square of the short side per round."""
    total = 0.0
    for p, parts in network.matrices().items():
        long, short = sorted((p.shape[0] // parts, p.shape[1]), reverse=True)
        total += parts * ROUNDS * 2 * (2 * long * short**2 + short**3)
    return total


class Muon(torch.optim.AdamW):
    """AdamW, with orthogonal updates for the matrices of the blocks."""

    def __init__(self, network: Backbone, groups: list[dict[str, Any]], optim: Optim) -> None:
        super().__init__(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)
        self.matrices = network.matrices()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        own = {p: group for group in self.param_groups for p in group["params"]}
        for p, parts in self.matrices.items():
            if p.grad is None:
                continue
            lr, decay = own[p]["lr"], own[p]["weight_decay"]
            if not self.state[p]:
                self.state[p] = self.memory(p)
            momentum = self.state[p]["momentum"].mul_(MOMENTUM).add_(p.grad)
            ahead = sharding.whole(p.grad + MOMENTUM * momentum)
            move = torch.cat([SIZE * math.sqrt(max(part.shape)) * orthogonal(part) for part in ahead.chunk(parts)])
            p.mul_(1 - lr * decay).sub_(sharding.shard_like(move, p), alpha=lr)
            p.grad = None  # so that AdamW skips it
        return super().step(closure)

    def memory(self, p: nn.Parameter) -> dict[str, Tensor]:
        """The initial optimizer state of a matrix."""
        return {"momentum": torch.zeros_like(p)}


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


@runtime_checkable
class Learner(Protocol):
    """A network with parts that are learned with it: those of an objective, or a head."""

    backbone: Backbone
    parts: nn.ModuleDict


def optimizer_of(learner: Learner, optim: Optim) -> torch.optim.AdamW:
    """The optimizer that the settings name."""
    groups = grouped(learner, optim)
    if optim.name == "muon":
        return Muon(learner.backbone, groups, optim)
    return torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)


def grouped(learner: Learner, optim: Optim) -> list[dict[str, Any]]:
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


def memory(optimizer: torch.optim.AdamW, p: nn.Parameter) -> dict[str, Tensor]:
    """The initial optimizer state of a parameter."""
    if isinstance(optimizer, Muon) and p in optimizer.matrices:
        return optimizer.memory(p)
    moments = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=p.device), **moments}


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Clip the gradient to a norm of at most `limit` (0: no clipping); returns the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = whole(nn.utils.get_total_norm(gradients))
    if limit:
        torch._foreach_mul_([local(g) for g in gradients], torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm
