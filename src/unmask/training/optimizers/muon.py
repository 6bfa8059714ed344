"""Muon: orthogonal updates of the matrices of the blocks, AdamW for all other weights.

Its products have the type of the network's: the polynomial brings singular values near 1, and bfloat16 as near.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.model.backbone import Spec, product_type, skeleton
from unmask.model.learner import Learner
from unmask.model.linear import sum_with_product, times
from unmask.processes import sharding
from unmask.settings import check_shares
from unmask.training.optim import OPTIMIZERS, AdamWUpdates, Optim, Updates

POLYNOMIAL = 3.4445, -4.7750, 2.0315  # of x, x³ and x⁵: brings any x in (0.01, 1] near 1 in `ROUNDS` rounds
ROUNDS = 5
SIZE = 0.2  # root mean square of an AdamW update, in units of the learning rate


@OPTIMIZERS.register("muon")
@dataclass(frozen=True)
class Muon(Optim):
    """Optimizer Muon (orthogonal updates of matrices), its learning rate, and the moving average of the weights."""

    rate: ClassVar[float] = 5e-3
    momentum: float = 0.95  # decay of the mean gradient of the matrices

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(momentum=self.momentum)

    def updates(self, learner: Learner) -> Updates:
        return MuonUpdates(learner, self)

    def flops(self, spec: Spec) -> float:
        """FLOPs of one update, two per multiply-add: a product with the square of the short side per round."""
        total = 0.0
        for p, parts in skeleton(spec).matrices().items():
            long, short = sorted((p.shape[0] // parts, p.shape[1]), reverse=True)
            total += parts * ROUNDS * 2 * (2 * long * short**2 + short**3)
        return total


class MuonUpdates:
    """The updates of Muon; AdamW skips the matrices, whose gradients are gone when it comes to them."""

    def __init__(self, learner: Learner, settings: Muon) -> None:
        self.rest, self.momentum = AdamWUpdates(learner, settings), settings.momentum
        self.backbone = learner.backbone
        self.matrices = self.backbone.matrices()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.rest.param_groups

    @property
    def state(self) -> Any:
        return self.rest.state

    @torch.no_grad()
    def step(self) -> None:
        own = {p: group for group in self.param_groups for p in group["params"]}
        for p, parts in self.matrices.items():
            if p.grad is None:
                continue
            lr, decay = own[p]["lr"], own[p]["weight_decay"]
            if not self.state[p]:
                self.state[p] = self.memory(p)
            momentum = self.state[p]["momentum"].mul_(self.momentum).add_(p.grad)
            ahead = sharding.whole(p.grad + self.momentum * momentum)
            kind = product_type(p.device, self.backbone.compute) or ahead.dtype
            move = torch.cat(
                [SIZE * math.sqrt(max(part.shape)) * orthogonal(part, kind) for part in ahead.chunk(parts)]
            )
            p.mul_(1 - lr * decay).sub_(sharding.shard_like(move, p), alpha=lr)
            p.grad = None
        self.rest.step()

    def zero_grad(self) -> None:
        self.rest.zero_grad()

    def memory(self, p: nn.Parameter) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(p)} if p in self.matrices else self.rest.memory(p)


def orthogonal(x: Float[Tensor, "m n"], kind: torch.dtype | None = None) -> Float[Tensor, "m n"]:
    """x with all singular values near 1 (0.7 to 1.2, unless they were tiny), by iterating a polynomial.

    `kind`: the type of the products and of the result; none: that of x.
    """
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.mT, kind).mT
    a, b, c = POLYNOMIAL
    x = (x / (x.norm() + 1e-7)).to(kind)
    for _ in range(ROUNDS):
        square = times(x, x)
        x = sum_with_product(x, sum_with_product(square, square, square, b, c), x.mT, a, 1.0)
    return x
