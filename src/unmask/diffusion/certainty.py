"""How sure a prediction is: what samplers order positions by, and what their likelihood replays."""

import torch
from jaxtyping import Float
from torch import Tensor


def confidence(log_p: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """The probability of the most likely token."""
    return log_p.amax(-1).exp()


def margin(log_p: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """The probability of the most likely token minus that of the second."""
    top = log_p.topk(2, -1).values.exp()
    return top[:, 0] - top[:, 1]


def entropy(log_p: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """−Σ p log p, with 0 log 0 = 0."""
    return -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(-1)


def sureness(log_p: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """Negative entropy: low entropy first."""
    return -entropy(log_p)


CERTAINTY = {"confidence": confidence, "margin": margin, "entropy": sureness}  # the greatest first
