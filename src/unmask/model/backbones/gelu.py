"""GELU in its tanh form, alone and followed by a product, in pieces that stay in a processor's cache.

    0.5 (1 + tanh u) = sigmoid(2u),   u = √(2/π) (x + 0.044715 x³)

torch computes the tanh of large tensors slowly on a CPU; its sigmoid is vectorised. `bench/kernels.py` has the times.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

PIECE = 1 << 16  # numbers of a piece: three buffers of it fit into the second level of a CPU's cache
LINEAR = 2 * math.sqrt(2 / math.pi)  # 2u = x (LINEAR + CUBIC x²)
CUBIC = 0.044715 * LINEAR


def here(x: Tensor) -> bool:
    """Whether the pieces are faster than torch's own GELU: not on a GPU, in bf16 or under torch.compile."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling()


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same pieces of contiguous tensors of one shape."""
    return zip(*(x.view(-1).split(PIECE) for x in tensors), strict=True)


def gelu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """GELU without a gradient; on a CPU in pieces."""
    if not here(x):
        return F.gelu(x, approximate="tanh")
    x = x.contiguous()
    found, linear = torch.empty_like(x), x.new_full((), LINEAR)
    for part, out in pieces(x, found):
        torch.addcmul(linear, part, part, value=CUBIC, out=out).mul_(part).sigmoid_().mul_(part)
    return found


class GeluLinear(torch.autograd.Function):
    """GELU(x) Wᵀ + b, of which only x is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        found = x.new_empty(*x.shape[:-1], len(weight))  # not a view, so that a residual can be added in place
        torch.addmm(bias, gelu(x).flatten(0, -2), weight.mT, out=found.view(-1, len(weight)))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        through = torch.mm(rows, weight)
        y = multiply_by_slope(x.contiguous().flatten(0, -2), through)
        _, weight_learns, bias_learns = ctx.needs_input_grad
        through = through.view(x.shape)
        return through, torch.mm(rows.mT, y) if weight_learns else None, rows.sum(0) if bias_learns else None


def multiply_by_slope(x: Float[Tensor, "n u"], gradient: Float[Tensor, "n u"]) -> Float[Tensor, "n u"]:
    """Multiply a gradient, in place, by dGELU/dx = s + x s (1 − s) (LINEAR + 3 CUBIC x²); returns GELU(x)."""
    found, linear, buffer = torch.empty_like(x), x.new_full((), LINEAR), x.new_empty(2, min(PIECE, x.numel()))
    for part, passed, y in pieces(x, gradient, found):
        s, slope = buffer[:, : len(part)]
        torch.addcmul(linear, part, part, value=CUBIC, out=s).mul_(part).sigmoid_()
        torch.mul(part, s, out=y)
        torch.addcmul(linear, part, part, value=3 * CUBIC, out=slope).mul_(y)
        passed.mul_(slope.addcmul_(slope, s, value=-1).add_(s))
    return found


def gelu_linear(
    x: Float[Tensor, "*shape u"], weight: Float[Tensor, "d u"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "*shape d"]:
    """GELU(x) Wᵀ + b."""
    if here(x) and torch.is_grad_enabled():
        return GeluLinear.apply(x, weight, bias)
    return F.linear(F.gelu(x, approximate="tanh") if torch.is_grad_enabled() else gelu(x), weight, bias)
