"""Linear layers on the fastest path that torch has for the processor.

On x86 torch multiplies float32 matrices with MKL, which runs its AVX-512 code on Intel's processors alone. oneDNN,
which torch also contains, runs its own on AMD's too (bench/products.py).
"""

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

FEWEST = 4  # rows; MKL is faster with fewer
LEAST = 2**21  # multiply-adds of a product; MKL is faster with so few, since oneDNN takes longer to begin
SHAPES = 16  # more rows come in multiples of this: oneDNN compiles code for every number of them


def linear(
    x: Float[Tensor, "*shape i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*shape o"]:
    """x Wᵀ + b."""
    if torch.compiler.is_compiling() or not (faster_with_onednn() and suitable(x, weight)):
        return F.linear(x, weight, bias)
    y: Tensor = Linear.apply(x, weight, bias) if torch.is_grad_enabled() else forward(x, weight, bias)
    return y


def times(x: Float[Tensor, "n i"], y: Float[Tensor, "o i"]) -> Float[Tensor, "n o"]:
    """x yᵀ, without gradients."""
    return product(x, y) if faster_with_onednn() and suitable(x, y) else x @ y.mT


def sum_with_product(
    z: Float[Tensor, "n o"], x: Float[Tensor, "n i"], y: Float[Tensor, "o i"], a: float, b: float
) -> Float[Tensor, "n o"]:
    """a z + b x yᵀ, without gradients."""
    if faster_with_onednn() and suitable(x, y):
        return product(x, y).mul_(b).add_(z, alpha=a)
    return torch.addmm(z, x, y.mT, beta=a, alpha=b)


@cache
def faster_with_onednn() -> bool:
    """Whether MKL leaves half of this processor unused, and torch has oneDNN's product."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkl.is_available():
        return False
    return is_amd() and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def is_amd() -> bool:
    path = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (path.read_text() if path.exists() else platform.processor())


def suitable(x: Tensor, weight: Tensor) -> bool:
    """Whether these are plain float32 matrices on a CPU, large enough, and nobody follows the operations."""
    return (
        x.numel() * weight.shape[0] > LEAST
        and x.numel() >= FEWEST * x.shape[-1]
        and type(weight) in (Tensor, nn.Parameter)
        and type(x) is Tensor
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()
    )


def filled(rows: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
    """The rows, and rows of zeros up to a number of rows that comes again."""
    more = -len(rows) % SHAPES if len(rows) > SHAPES else 0
    return F.pad(rows, (0, 0, 0, more)) if more else rows


def product(
    x: Float[Tensor, "n i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "n o"]:
    """x Wᵀ + b by oneDNN, of matrices that may be transposed in memory."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return y


def forward(
    x: Float[Tensor, "*shape i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*shape o"]:
    # Not a view of the product, so that its memory may be written to.
    return product(filled(x.flatten(0, -2)), weight, bias).resize_(*x.shape[:-1], len(weight))


class Linear(torch.autograd.Function):
    """The product and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows, g = x.flatten(0, -2), gradient.flatten(0, -2)
        of_bias = g.sum(0) if for_bias else None
        if torch.is_grad_enabled():  # gradients of gradients were asked for
            return (g @ weight).view(x.shape), g.t() @ rows, of_bias
        of_x = of_weight = None
        rows, g = filled(rows), filled(g.contiguous())
        if for_x:
            of_x = product(g, weight.t()).resize_(x.shape)
        if for_weight:  # the shorter side first: oneDNN is faster so
            of_weight = product(g.t(), rows.t()) if g.shape[1] <= rows.shape[1] else product(rows.t(), g.t()).t()
        return of_x, of_weight, of_bias
