"""The moving average of the weights, used for evaluation, sampling and export."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unmask.processes.sharding import local


def decay_at(n: int, decay: float) -> float:
    """min(decay, (1 + n)/(10 + n)) at the n-th update, n = 1, 2, ...: a short average at first. [reference]"""
    return min(decay, (1 + n) / (10 + n))


def begin_average(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The average before any update: the weights themselves."""
    return [p.detach().clone() for p in parameters]


@torch.no_grad()
def update(shadow: list[Tensor], parameters: Iterable[nn.Parameter], *, n: int, decay: float) -> None:
    """shadow −= (1 − d)(shadow − weight), d the decay at the n-th update."""
    now = [local(p.detach()) for p in parameters]
    torch._foreach_lerp_([local(average) for average in shadow], now, 1 - decay_at(n, decay))


@contextmanager
def in_place(shadow: list[Tensor], parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put the averaged weights into the network while the block runs, then the trained ones back."""
    weights = list(parameters)
    exchange(shadow, weights)
    try:
        yield
    finally:
        exchange(shadow, weights)


@torch.no_grad()
def exchange(shadow: list[Tensor], parameters: list[nn.Parameter]) -> None:
    """Swap values, not storage: a sharded network also refers to its storage outside its parameters."""
    for average, p in zip(shadow, parameters, strict=True):
        trained = local(p).clone()
        local(p).copy_(local(average))
        local(average).copy_(trained)
