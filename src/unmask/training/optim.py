"""The optimizer: AdamW in one pass over memory, or Muon; a learning rate that is a pure function of the step."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.processes import sharding as shards
from unmask.processes.sharding import local, whole
from unmask.training.settings import Optim

POLYNOMIAL = 3.4445, -4.7750, 2.0315  # of x, x³ and x⁵: brings any x in (0.01, 1] near 1 in so many rounds
ROUNDS = 5
MOMENTUM = 0.95
SIZE = 0.2  # root mean square of an update of AdamW, in learning rates


def orthogonal(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """x with all singular values near 1 (0.7 to 1.2, unless they were tiny): a polynomial, again and again."""
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.mT).mT
    a, b, c = POLYNOMIAL
    x = x / (x.norm() + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


def matrices(network: Transformer) -> dict[nn.Parameter, int]:
    """What moves orthogonally, and how many matrices each is: queries, keys and values lie in one tensor."""
    found: dict[nn.Parameter, int] = {}
    for name, p in network.blocks.named_parameters():
        if p.ndim == 2 and "adaLN" not in name:
            found[p] = 3 if "qkv" in name else 1
    return found


def flops(a: Architecture) -> float:
    """Operations of one update, two for each multiply-add: d by d four times a block, d by 4d twice."""
    return a.blocks * ROUNDS * 2 * a.width**3 * (4 * 3 + 2 * 9)


class Muon(torch.optim.AdamW):
    """AdamW that leaves the matrices of the blocks to the orthogonal rule."""

    def __init__(self, network: Transformer, groups: list[dict[str, Any]], optim: Optim) -> None:
        super().__init__(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)
        self.matrices = matrices(network)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        lr, decay = (self.param_groups[0][key] for key in ("lr", "weight_decay"))
        for p, parts in self.matrices.items():
            if p.grad is None:
                continue
            if not self.state[p]:
                self.state[p] = self.memory(p)
            momentum = self.state[p]["momentum"].mul_(MOMENTUM).add_(p.grad)
            ahead = shards.whole(p.grad + MOMENTUM * momentum)
            move = torch.cat([SIZE * math.sqrt(max(part.shape)) * orthogonal(part) for part in ahead.chunk(parts)])
            p.mul_(1 - lr * decay).sub_(shards.share(move, p), alpha=lr)
            p.grad = None  # so that AdamW passes it by
        return super().step(closure)

    def memory(self, p: nn.Parameter) -> dict[str, Tensor]:
        """What is remembered of a matrix before its first update."""
        return {"momentum": torch.zeros_like(p)}


def learning_rate(step: int, *, steps: int, optim: Optim) -> float:
    """The learning rate of update `step` (0, 1, ... steps − 1): linear growth, then the schedule.

    The first update has lr/warmup; with `reference` it has 0, and every later one is late by one.
    """
    done = step if optim.reference else step + 1
    if done < optim.warmup:
        return optim.lr * done / optim.warmup
    if optim.schedule == "constant":
        return optim.lr
    passed = min(1.0, (done - optim.warmup) / max(1, steps - optim.warmup))
    left = (1 + math.cos(math.pi * passed)) / 2 if optim.schedule == "cosine" else 1 - passed
    return optim.lr * (optim.floor + (1 - optim.floor) * left)


def chosen(network: Transformer, optim: Optim) -> torch.optim.AdamW:
    """The optimizer that the settings name."""
    if optim.name == "muon":
        return Muon(network, grouped(network.parameters(), optim), optim)
    return adamw(network.parameters(), optim)


def adamw(parameters: Iterable[nn.Parameter], optim: Optim) -> torch.optim.AdamW:
    groups = grouped(parameters, optim)
    return torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)


def grouped(parameters: Iterable[nn.Parameter], optim: Optim) -> list[dict[str, Any]]:
    """Weight decay is on matrices alone."""
    all_of_them = list(parameters)
    return [
        {"params": [p for p in all_of_them if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in all_of_them if p.ndim < 2], "weight_decay": 0.0},
    ]


def memory(optimizer: torch.optim.AdamW, p: nn.Parameter) -> dict[str, Tensor]:
    """What the optimizer remembers of a parameter before the first update."""
    if isinstance(optimizer, Muon) and p in optimizer.matrices:
        return optimizer.memory(p)
    moments = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=p.device), **moments}


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Shorten the gradient to a norm of at most `limit` (0: never); returns the norm it had."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = whole(nn.utils.get_total_norm(gradients))
    if limit:
        torch._foreach_mul_([local(g) for g in gradients], torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm
