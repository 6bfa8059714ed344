"""The selective scan compiled by numba for a CPU: the state of a channel stays in the cache, nothing else is stored.

The work is cut by row and block of channels, and shared by as many threads as torch has. The channels of a block are
the inner loop, so that vector instructions hold one number of each; those that a last block lacks have Δ = 0 and
change nothing. The forward pass keeps the state every 64 steps; the backward pass computes the steps between again.
This file needs numba, so only `selective.compiled_kernel` imports it.
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
    rates, h = np.zeros((n, BLOCK), np.float32), np.zeros((n, BLOCK), np.float32)
    d, du, total = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    for task in range(first, end):
        row, block = task // blocks, task % blocks
        low = block * BLOCK
        width = min(BLOCK, channels - low)
        d[width:] = du[width:] = 0
        h[:, width:] = 0
        for j in range(width):
            for i in range(n):
                rates[i, j] = a[low + j, i]
                h[i, j] = state[row, low + j, i]
        for t in range(length):
            if t % CHUNK == 0:
                kept[row, t // CHUNK, block] = h
            for j in range(width):
                d[j] = delta[row, t, low + j]
                du[j] = d[j] * u[row, t, low + j]
            total[:] = 0
            for i in range(n):
                b_i, c_i = b[row, t, i], c[row, t, i]
                for j in range(BLOCK):
                    now = exp(d[j] * rates[i, j]) * h[i, j] + du[j] * b_i
                    h[i, j] = now
                    total[j] += c_i * now
            for j in range(width):
                y[row, t, low + j] = total[j]
        for j in range(width):
            for i in range(n):
                last[row, low + j, i] = h[i, j]


@jit(fastmath=SUMS)
@no_type_check
def backward_tasks(u, delta, a, b, c, kept, gy, gu, gdelta, ga, gb, gc, first, end):
    """Tasks first .. end − 1 of the backward pass; ga is per row, gb and gc are per block of channels."""
    length, channels, n = u.shape[1], u.shape[2], a.shape[1]
    blocks = (channels + BLOCK - 1) // BLOCK
    rates, grates = np.zeros((n, BLOCK), np.float32), np.zeros((n, BLOCK), np.float32)
    g = np.zeros((n, BLOCK), np.float32)  # ∂loss/∂h_t
    states = np.zeros((CHUNK + 1, n, BLOCK), np.float32)  # states[s + 1]: after step s of the chunk
    decays = np.zeros((CHUNK, n, BLOCK), np.float32)
    d, du = np.zeros((CHUNK, BLOCK), np.float32), np.zeros((CHUNK, BLOCK), np.float32)
    dy, by_input, by_decay = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    for task in range(first, end):
        row, block = task // blocks, task % blocks
        low = block * BLOCK
        width = min(BLOCK, channels - low)
        d[:, width:] = du[:, width:] = 0
        dy[width:] = 0
        g[:] = grates[:] = 0
        for j in range(width):
            for i in range(n):
                rates[i, j] = a[low + j, i]
        for chunk in range(kept.shape[1] - 1, -1, -1):
            start = chunk * CHUNK
            steps = min(CHUNK, length - start)
            states[0] = kept[row, chunk, block]
            for s in range(steps):
                for j in range(width):
                    d[s, j] = delta[row, start + s, low + j]
                    du[s, j] = d[s, j] * u[row, start + s, low + j]
                for i in range(n):
                    b_i = b[row, start + s, i]
                    for j in range(BLOCK):
                        decay = exp(d[s, j] * rates[i, j])
                        decays[s, i, j] = decay
                        states[s + 1, i, j] = decay * states[s, i, j] + du[s, j] * b_i
            for s in range(steps - 1, -1, -1):
                t = start + s
                for j in range(width):
                    dy[j] = gy[row, t, low + j]
                by_input[:] = by_decay[:] = 0
                for i in range(n):
                    b_i, c_i = b[row, t, i], c[row, t, i]
                    to_b, to_c = np.float32(0), np.float32(0)
                    for j in range(BLOCK):
                        now = g[i, j] + dy[j] * c_i
                        earlier = now * decays[s, i, j]
                        through = earlier * states[s, i, j]
                        g[i, j] = earlier
                        by_input[j] += now * b_i
                        by_decay[j] += through * rates[i, j]
                        grates[i, j] += through * d[s, j]
                        to_b += now * du[s, j]
                        to_c += dy[j] * states[s + 1, i, j]
                    gb[block, row, t, i] = to_b
                    gc[block, row, t, i] = to_c
                for j in range(width):
                    gu[row, t, low + j] = by_input[j] * d[s, j]
                    gdelta[row, t, low + j] = by_decay[j] + by_input[j] * u[row, t, low + j]
        for j in range(width):
            for i in range(n):
                ga[row, low + j, i] = grates[i, j]


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
        kept = u.new_empty(rows, -(-length // CHUNK), -(-channels // BLOCK), a.shape[1], BLOCK)
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
        ga = u.new_empty(rows, *a.shape)
        gb, gc = u.new_empty(blocks, *b.shape), u.new_empty(blocks, *b.shape)
        arrays = tuple(x.numpy() for x in (u, delta, a, b, c, kept, grad_y.contiguous(), gu, gdelta, ga, gb, gc))
        share(backward_tasks, arrays, rows=rows, channels=channels)
        return gu, gdelta, ga.sum(0), gb.sum(0), gc.sum(0), None
