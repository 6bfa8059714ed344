"""Muon: the matrices inside the blocks move by their momentum made orthogonal, all else as AdamW moves it.

A gradient is large along a few directions of a matrix, and there Adam goes too. An orthogonal update goes equally far
along all of them. It is scaled to the size of AdamW's updates, so one learning rate serves both kinds of weights.
(Jordan et al. 2024; the scale: arXiv 2502.16982.) Torch has a Muon as well, which multiplies in bfloat16 and takes
queries, keys and values for one matrix; a test holds ours to it.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.model.transformer import Architecture, Transformer
from unmask.training import shards
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
