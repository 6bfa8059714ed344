"""Paired differences: two models on the same tokens, so that what both find hard cancels."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError

BLOCK = 128  # tokens of a text that depend on each other: errors are computed from the differences of such blocks


@dataclass(frozen=True)
class Paired:
    """A difference, second less first: in nats per token, or of a score."""

    difference: float
    error: float  # standard error over blocks of text, and over seeds where there are several
    tokens: int
    seeds: int


def token_nats(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that a measurement scored, in order, and the nats of each."""
    ids: list[int] = []
    nats: list[float] = []
    for line in lines_of(path):
        ids += line["ids"]
        nats += line["token_nats"]
    return np.array(ids), np.array(nats)


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            content = json.loads(line)
            if "token_nats" not in content:
                raise UserError(f"{path} has no nats per token.")
            yield content


def paired(first: Sequence[Path], second: Sequence[Path]) -> Paired | None:
    """The mean difference of two rows, each measured for some seeds; None if they did not score the same tokens."""
    pairs = []
    for one, other in zip(first, second, strict=False):
        (ids, a), (others, b) = token_nats(one), token_nats(other)
        length = min(len(ids), len(others))
        # Causal rows do not score the first token of a text: it has nothing before it.
        if not length or abs(len(ids) - len(others)) > 1:
            return None
        ids, a, others, b = ids[-length:], a[-length:], others[-length:], b[-length:]
        if not np.array_equal(ids, others):
            return None
        pairs.append(b - a)
    return of_differences(pairs) if pairs else None


def of_differences(pairs: Sequence[np.ndarray]) -> Paired:
    """Differences per token, one array per seed: their mean, and its error from blocks of text and from seeds."""
    means = [float(one.mean()) for one in pairs]
    over_text = (
        block_error(np.mean(pairs, axis=0)) if len({len(one) for one in pairs}) == 1 else block_error(pairs[0])
    )
    over_seeds = float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else 0.0
    return Paired(float(np.mean(means)), math.hypot(over_text, over_seeds), len(pairs[0]), len(pairs))


def by_trial(first: Sequence[float], second: Sequence[float]) -> Paired | None:
    """The mean difference of scores, trial by trial, with its standard error; None without two trials of both."""
    if len(first) != len(second) or len(first) < 2:
        return None
    each = np.subtract(second, first)
    return Paired(float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each))), 0, len(each))


def block_error(values: np.ndarray) -> float:
    """The standard error of the mean of dependent values, from the means of blocks."""
    count = len(values) // BLOCK
    if count < 2:
        return math.inf
    blocks = values[: count * BLOCK].reshape(count, BLOCK).mean(1)
    return float(blocks.std(ddof=1) / math.sqrt(count))
