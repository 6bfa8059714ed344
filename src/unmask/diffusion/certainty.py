"""How sure a prediction is, and the order of positions by it: one rule for the samplers and for their likelihood.

The order is a function of the tokens revealed so far and of nothing else, so a text has one path under a sampler with
one token per call, and its exact likelihood is a product along that path.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

TIE = 1e-4  # scores, in nats or probability, that differ by less count as equal


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


def ranking(score: Float[Tensor, "b w"]) -> Int[Tensor, "b w"]:
    """The positions of each row from best to worst; equal scores from left to right.

    Ties do occur: on a row of masks only, a network with relative positions gives the same logits everywhere, up to
    the last bits, which change with the shape of the batch. So scores are rounded to multiples of `TIE` first.
    """
    return (score / TIE).round().argsort(dim=1, descending=True, stable=True)


def surest(score: Float[Tensor, "b w"], count: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
    """The `count` best positions of each row, among those with a score above −∞."""
    first = torch.arange(score.shape[1], device=score.device) < count[:, None]
    return torch.zeros_like(first).scatter(1, ranking(score), first) & (score > -torch.inf)


def even_share(left: Int[Tensor, " b"], calls: Int[Tensor, " b"] | int) -> Int[Tensor, " b"]:
    """The number of tokens to reveal now, so that these calls are enough for what is left: ⌈left / calls⌉."""
    return (left + calls - 1) // calls
