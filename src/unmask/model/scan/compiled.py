"""The selective scan compiled by numba for a CPU: the state of a channel stays in the cache, nothing else is stored.

The work is cut by row and block of channels, and shared by as many threads as torch has. The forward pass keeps the
state every 64 steps; the backward pass computes the steps between again. This file needs numba, so only
`selective.compiled_kernel` imports it.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, no_type_check

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 64  # steps between two kept states
BLOCK = 32  # channels of a task

SUMS = {"reassoc", "contract", "nsz"}  # sums may be taken in any order, so that they use vector instructions
LOG2E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
E2, E3, E4, E5, E6, E7 = (np.float32(1 / f) for f in (2, 6, 24, 120, 720, 5040))
HALF, ONE, LEAST = np.float32(0.5), np.float32(1), np.float32(-87)


def jit(**options: Any) -> Callable[[Any], Any]:
    """Compile without the interpreter's lock, and keep the result on disk where some folder can be written."""

    def compiled(function: Any) -> Any:
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # no folder for the cache
            return njit(nogil=True, **options)(function)

    return compiled


@jit(fastmath={"contract"})
@no_type_check
def exp(x):
    """e^x for x ≤ 0: 2^k e^r with |r| ≤ ln 2 / 2, a polynomial for e^r and k put into the exponent's bits.

    The library's exp is a call for each number; this one lets the compiler use vector instructions.
    """
    x = max(x, LEAST)
    k = np.int32(x * LOG2E - HALF)
    f = np.float32(k)
    r = (x - f * LN2_HIGH) - f * LN2_LOW
    p = ONE + r * (ONE + r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * (E6 + r * E7))))))
    return p * np.int32((k + 127) << 23).view(np.float32)


@jit(fastmath=SUMS)
@no_type_check
def forward_tasks(u, delta, a, b, c, state, y, kept, last, first, end):
    """Tasks first .. end − 1 of the forward pass; a task is one row and one block of channels."""
    length, channels, n = u.shape[1], u.shape[2], a.shape[1]
    blocks = (channels + BLOCK - 1) // BLOCK
    for task in range(first, end):
        row, low = task // blocks, task % blocks * BLOCK
        width = min(BLOCK, channels - low)
        h = state[row, low : low + width].copy()
        for t in range(length):
            if t % CHUNK == 0:
                kept[row, t // CHUNK, low : low + width] = h
            for j in range(width):
                e = low + j
                d = delta[row, t, e]
                du = d * u[row, t, e]
                total = np.float32(0)
                for i in range(n):
                    h[j, i] = exp(d * a[e, i]) * h[j, i] + du * b[row, t, i]
                    total += c[row, t, i] * h[j, i]
                y[row, t, e] = total
        last[row, low : low + width] = h


@jit(fastmath=SUMS)
@no_type_check
def backward_tasks(u, delta, a, b, c, kept, gy, gu, gdelta, ga, gb, gc, first, end):
    """Tasks first .. end − 1 of the backward pass; ga is per row, gb and gc are per block of channels."""
    length, channels, n = u.shape[1], u.shape[2], a.shape[1]
    blocks = (channels + BLOCK - 1) // BLOCK
    states = np.empty((CHUNK + 1, BLOCK, n), np.float32)  # states[s + 1]: after step s of the chunk
    decays = np.empty((CHUNK, BLOCK, n), np.float32)
    for task in range(first, end):
        row, block = task // blocks, task % blocks
        low = block * BLOCK
        width = min(BLOCK, channels - low)
        g = np.zeros((width, n), np.float32)  # ∂loss/∂h_t
        for chunk in range(kept.shape[1] - 1, -1, -1):
            start = chunk * CHUNK
            steps = min(CHUNK, length - start)
            states[0, :width] = kept[row, chunk, low : low + width]
            for s in range(steps):
                for j in range(width):
                    d = delta[row, start + s, low + j]
                    du = d * u[row, start + s, low + j]
                    for i in range(n):
                        decay = exp(d * a[low + j, i])
                        decays[s, j, i] = decay
                        states[s + 1, j, i] = decay * states[s, j, i] + du * b[row, start + s, i]
            for s in range(steps - 1, -1, -1):
                t = start + s
                for j in range(width):
                    e = low + j
                    d, dy = delta[row, t, e], gy[row, t, e]
                    du = d * u[row, t, e]
                    by_input, by_decay = np.float32(0), np.float32(0)
                    for i in range(n):
                        now = g[j, i] + dy * c[row, t, i]
                        earlier = now * decays[s, j, i]
                        through = earlier * states[s, j, i]
                        g[j, i] = earlier
                        by_input += now * b[row, t, i]
                        by_decay += through * a[e, i]
                        ga[row, e, i] += through * d
                        gb[block, row, t, i] += now * du
                        gc[block, row, t, i] += dy * states[s + 1, j, i]
                    gu[row, t, e] = by_input * d
                    gdelta[row, t, e] = by_decay + by_input * u[row, t, e]


def share(work: Any, arrays: tuple[Any, ...], *, rows: int, channels: int) -> None:
    """Run all tasks, in as many threads as torch uses."""
    tasks = rows * -(-channels // BLOCK)
    workers = max(1, min(torch.get_num_threads(), tasks))
    if workers == 1:
        work(*arrays, 0, tasks)
        return
    cuts = [tasks * i // workers for i in range(workers + 1)]
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(lambda first, end: work(*arrays, first, end), cuts[:-1], cuts[1:]):
            pass


def scan(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `loop.scan`, for float32 on a CPU."""
    return CompiledScan.apply(u, delta, a, b, c, state)


class CompiledScan(torch.autograd.Function):
    """The kernels as a differentiable function of u, delta, a, b, c."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> Any:
        u, delta, a, b, c, state = (x.detach().contiguous() for x in (u, delta, a, b, c, state))
        rows, length, channels = u.shape
        y, last = torch.empty_like(u), torch.empty_like(state)
        kept = u.new_empty(rows, -(-length // CHUNK), *a.shape)
        arrays = tuple(x.numpy() for x in (u, delta, a, b, c, state, y, kept, last))
        share(forward_tasks, arrays, rows=rows, channels=channels)
        ctx.save_for_backward(u, delta, a, b, c, kept)
        ctx.mark_non_differentiable(last)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, _: Tensor) -> Any:
        u, delta, a, b, c, kept = ctx.saved_tensors
        rows, _, channels = u.shape
        blocks = -(-channels // BLOCK)
        gu, gdelta = torch.empty_like(u), torch.empty_like(u)
        ga = u.new_zeros(rows, *a.shape)
        gb, gc = u.new_zeros(blocks, *b.shape), u.new_zeros(blocks, *b.shape)
        arrays = tuple(x.numpy() for x in (u, delta, a, b, c, kept, grad_y.contiguous(), gu, gdelta, ga, gb, gc))
        share(backward_tasks, arrays, rows=rows, channels=channels)
        return gu, gdelta, ga.sum(0), gb.sum(0), gc.sum(0), None
