"""Rows out of the tiny worlds, and the evaluation loop run for some passes."""

from dataclasses import replace

import numpy as np
import torch

from exact import ChainWorld
from unmask.evaluation.likelihood.estimators import estimator
from unmask.evaluation.likelihood.passes import Likelihood, Tally, evaluate, summary
from unmask.text.row import Row


def texts_of(world: ChainWorld, rows: int, *, seed: int = 0) -> torch.Tensor:
    """Texts drawn from a chain (rows, l)."""
    generator = torch.Generator().manual_seed(seed)
    x = [torch.multinomial(world.start, rows, replacement=True, generator=generator)]
    for _ in range(world.length - 1):
        x.append(torch.multinomial(world.step[x[-1]], 1, generator=generator).squeeze(1))
    return torch.stack(x, 1)


def passages_of(texts: torch.Tensor, *, given: int = 0) -> list[Row]:
    return [
        replace(Row.after(given, row.numpy(), bytes=float(len(row) - given)), document=number)
        for number, row in enumerate(texts)
    ]


def tally_of(world, passages: list[Row], name: str = "count", *, passes: int = 1, seed: int = 0, **more) -> Tally:
    budget = more.pop("budget", 64)
    one = estimator(name, budget=budget, **more)
    for tally in evaluate(world.network, passages, one, mask=world.mask, seed=seed, budget=budget):
        if tally.whole == passes:
            break
    return tally


def number_of(world, passages: list[Row], name: str = "count", **more) -> Likelihood:
    return summary(tally_of(world, passages, name, **more))


def per_token(nats: torch.Tensor, texts: torch.Tensor) -> float:
    return float(np.float64(nats.sum()) / texts.numel())
