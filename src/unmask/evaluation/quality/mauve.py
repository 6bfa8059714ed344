"""Likeness of samples and real text: MAUVE (Pillutla et al. 2021), where the package mauve-text is installed.

Both are turned into what the judge has in mind at their ends (its last hidden state), and the package compares the
two clouds. It depends on the judge, on the lengths and on the number of samples, and has no error bar here.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

LEAST = 200  # samples: the package makes one group of ten, and with few groups all texts look alike


@runtime_checkable
class Seer(Protocol):
    """A judge that shows what it has in mind."""

    def mind(self, tokens: Int[Tensor, "1 l"]) -> Float[Tensor, " d"]:
        """The last hidden state at the last token."""


def mauve(
    judge: object, samples: Sequence[np.ndarray], real: Sequence[np.ndarray] | None
) -> tuple[float | None, str]:
    """MAUVE in (0, 1], or why there is none."""
    if not isinstance(judge, Seer) or real is None:
        return None, "it needs a judge and as much training text as there are samples"
    if len(samples) < LEAST:
        return None, f"it needs at least {LEAST} samples; there are {len(samples)}"
    try:
        from mauve import compute_mauve
    except ImportError:
        return None, "mauve-text is not installed"
    clouds = [
        np.stack([judge.mind(torch.from_numpy(row[None])).float().numpy() for row in rows if len(row)])
        for rows in (real, samples)
    ]
    found = compute_mauve(p_features=clouds[0], q_features=clouds[1], verbose=False)
    return float(found.mauve), f"{len(samples)} samples, last hidden state of the judge"
