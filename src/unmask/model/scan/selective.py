"""The selective scan of Mamba: a linear recurrence whose decay and input depend on the token.

    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t u_t,    y_t = C_t · h_t      for every channel, with a state of n numbers

Three ways compute it, and a test holds them equal: the vendor's CUDA kernel where it is installed, a kernel compiled
by numba where that is installed (the extra `dna`), and a loop over time in torch, which always works. All are made of
products and sums: nothing is divided by products of decays, because these underflow.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.model.scan import loop

CHUNK = 16  # steps between two states that the compiled scan keeps for its backward pass; the loop keeps fewer
Scanned = tuple[Tensor, Tensor]  # y (b l e) and the last state (b e n)


def selective_scan(
    u: Float[Tensor, "b l e"],
    delta: Float[Tensor, "b l e"],
    a: Float[Tensor, "e n"],
    b: Float[Tensor, "b l n"],
    c: Float[Tensor, "b l n"],
    state: Float[Tensor, "b e n"] | None = None,
) -> Scanned:
    """y (b l e) and the state after the last token, in float32 or wider; `delta` ≥ 0 and `a` ≤ 0.

    `state` is the state before the first token; None: zero. Gradients reach the first five arguments through y only.
    """
    wide = torch.promote_types(u.dtype, torch.float32)
    given = tuple(x.to(wide) for x in (u, delta, a, b, c))
    if state is None:
        vendor = vendor_kernel() if u.is_cuda else None
        if vendor is not None:
            return vendor_scan(vendor, *given)
        state = given[0].new_zeros(len(u), *a.shape)
    kernel = compiled_kernel() if wide == torch.float32 and u.device.type == "cpu" else None
    scan: Callable[..., Scanned] = loop.scan if kernel is None else kernel
    return scan(*given, state.to(wide))


@cache
def compiled_kernel() -> Callable[..., Scanned] | None:
    """The scan compiled by numba, for float32 on a CPU; None without numba."""
    return import_module("unmask.model.scan.compiled").scan if find_spec("numba") else None


@cache
def vendor_kernel() -> Callable[..., Any] | None:
    """`selective_scan_fn` of the package mamba_ssm; None without it."""
    if find_spec("mamba_ssm") is None:
        return None
    return import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn


def vendor_scan(kernel: Callable[..., Any], u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Scanned:
    """The vendor's kernel has time last."""
    u, delta, b, c = (x.transpose(1, 2).contiguous() for x in (u, delta, b, c))
    y, last = kernel(u, delta, a, b, c, return_last_state=True)
    return y.transpose(1, 2), last.detach()
