"""The optimizer: AdamW in one pass over memory, or Muon; a learning rate that is a pure function of the step."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from unmask.model.transformer import Transformer
from unmask.training.muon import Muon
from unmask.training.settings import Optim
from unmask.training.shards import local, whole


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
