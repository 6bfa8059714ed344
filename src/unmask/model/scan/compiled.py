"""The selective scan compiled by numba for a CPU: the state of a channel stays in the cache, nothing else is stored.

The work is cut by row and block of channels, and shared by as many threads as torch has. The forward pass keeps the
state every CHUNK steps; the backward pass computes the steps between again. This file needs numba, so only
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

from unmask.model.scan.selective import CHUNK

BLOCK = 256  # channels of a task

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
def forward_tasks(u, delta, a, b, c, state, y, chunks, last, first, end):
    """Tasks first .. end − 1 of the forward pass; a task is one row and one block of channels."""
    n, channels = a.shape
    blocks = (channels + BLOCK - 1) // BLOCK
    h, du = np.empty((n, BLOCK), np.float32), np.empty(BLOCK, np.float32)
    for task in range(first, end):
        row, low = task // blocks, task % blocks * BLOCK
        width = min(BLOCK, channels - low)
        for i in range(n):
            for j in range(width):
                h[i, j] = state[row, low + j, i]
        for t in range(u.shape[1]):
            if t % CHUNK == 0:
                chunks[row, t // CHUNK, :, low : low + width] = h[:, :width]
            d, out = delta[row, t, low : low + width], y[row, t, low : low + width]
            for j in range(width):
                du[j] = d[j] * u[row, t, low + j]
            for j in range(width):
                out[j] = 0
            for i in range(n):
                decay, state_i, b_i, c_i = a[i, low : low + width], h[i], b[row, t, i], c[row, t, i]
                for j in range(width):
                    now = exp(d[j] * decay[j]) * state_i[j] + du[j] * b_i
                    state_i[j] = now
                    out[j] += now * c_i
        for i in range(n):
            for j in range(width):
                last[row, low + j, i] = h[i, j]


@jit(fastmath=SUMS)
@no_type_check
def backward_tasks(u, delta, a, b, c, chunks, gy, gu, gdelta, ga, gb, gc, first, end):
    """Tasks first .. end − 1 of the backward pass; ga is per row, gb and gc are per block of channels.

    Each inner loop writes to one or two arrays only: with more, the compiler cannot prove that they do not overlap.
    """
    n, channels = a.shape
    length = u.shape[1]
    blocks = (channels + BLOCK - 1) // BLOCK
    states = np.empty((CHUNK + 1, n, BLOCK), np.float32)  # states[s + 1]: after step s of the chunk
    decays = np.empty((CHUNK, n, BLOCK), np.float32)
    du, by_input, by_decay = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for task in range(first, end):
        row, block = task // blocks, task % blocks
        low = block * BLOCK
        width = min(BLOCK, channels - low)
        high = low + width
        g = np.zeros((n, BLOCK), np.float32)  # ∂loss/∂h_t
        for chunk in range(chunks.shape[1] - 1, -1, -1):
            start = chunk * CHUNK
            steps = min(CHUNK, length - start)
            states[0, :, :width] = chunks[row, chunk, :, low:high]
            for s in range(steps):
                d = delta[row, start + s, low:high]
                for j in range(width):
                    du[j] = d[j] * u[row, start + s, low + j]
                for i in range(n):
                    a_i, decay, b_i = a[i, low:high], decays[s, i], b[row, start + s, i]
                    before, after = states[s, i], states[s + 1, i]
                    for j in range(width):
                        decay[j] = exp(d[j] * a_i[j])
                    for j in range(width):
                        after[j] = decay[j] * before[j] + du[j] * b_i
            for s in range(steps - 1, -1, -1):
                t = start + s
                d, dy, u_t = delta[row, t, low:high], gy[row, t, low:high], u[row, t, low:high]
                for j in range(width):
                    du[j] = d[j] * u_t[j]
                by_input[:], by_decay[:] = 0, 0
                for i in range(n):
                    g_i, decay, before, after = g[i], decays[s, i], states[s, i], states[s + 1, i]
                    a_i, ga_i, b_i, c_i = a[i, low:high], ga[row, i, low:high], b[row, t, i], c[row, t, i]
                    of_b, of_c = np.float32(0), np.float32(0)
                    for j in range(width):
                        now = g_i[j] + dy[j] * c_i
                        by_input[j] += now * b_i
                        of_b += now * du[j]
                        g_i[j] = now * decay[j]
                    for j in range(width):
                        of_c += dy[j] * after[j]
                    for j in range(width):
                        by_decay[j] += g_i[j] * before[j] * a_i[j]
                    for j in range(width):
                        ga_i[j] += g_i[j] * before[j] * d[j]
                    gb[block, row, t, i], gc[block, row, t, i] = of_b, of_c
                for j in range(width):
                    gu[row, t, low + j] = by_input[j] * d[j]
                for j in range(width):
                    gdelta[row, t, low + j] = by_decay[j] + by_input[j] * u_t[j]


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
        a = a.T.contiguous()  # channels last, as in u: they are the numbers of a vector instruction
        chunks = u.new_empty(rows, -(-length // CHUNK), *a.shape)
        arrays = tuple(x.numpy() for x in (u, delta, a, b, c, state, y, chunks, last))
        share(forward_tasks, arrays, rows=rows, channels=channels)
        ctx.save_for_backward(u, delta, a, b, c, chunks)
        ctx.mark_non_differentiable(last)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, _: Tensor) -> Any:
        u, delta, a, b, c, chunks = ctx.saved_tensors
        rows, _, channels = u.shape
        blocks = -(-channels // BLOCK)
        gu, gdelta = torch.empty_like(u), torch.empty_like(u)
        ga = u.new_zeros(rows, *a.shape)
        gb, gc = u.new_zeros(blocks, *b.shape), u.new_zeros(blocks, *b.shape)
        arrays = tuple(x.numpy() for x in (u, delta, a, b, c, chunks, grad_y.contiguous(), gu, gdelta, ga, gb, gc))
        share(backward_tasks, arrays, rows=rows, channels=channels)
        return gu, gdelta, ga.sum(0).T, gb.sum(0), gc.sum(0), None
