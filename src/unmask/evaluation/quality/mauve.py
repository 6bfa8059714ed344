"""MAUVE (Pillutla et al. 2021): the similarity of samples and real text, if the package mauve-text is installed.

Each text is represented by the judge's last hidden state at its last token, and the package compares the two sets.
The value depends on the judge, the lengths and the number of samples, and has no error bar here.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

LEAST = 200  # samples: the package makes a cluster per ten samples; with few clusters all texts look alike


@runtime_checkable
class Seer(Protocol):
    """A judge whose hidden state can be read."""

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
    features = [
        np.stack([judge.mind(torch.from_numpy(row[None])).float().numpy() for row in rows if len(row)])
        for rows in (real, samples)
    ]
    score = compute_mauve(p_features=features[0], q_features=features[1], verbose=False)
    return float(score.mauve), f"{len(samples)} samples, last hidden state of the judge"
