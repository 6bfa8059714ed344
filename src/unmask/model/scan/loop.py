"""The selective scan as a loop over time in torch, with a backward pass of its own.

The forward pass keeps the state at the start of every chunk only. The backward pass computes the states of a chunk
again; its own recurrence is the same one, backwards in time.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 64  # steps between two kept states


def scan(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """y (b l e) and the last state (b e n) of inputs u, delta (b l e), a (e n), b, c (b l n) and a state (b e n)."""
    return LoopScan.apply(u, delta, a, b, c, state)


class LoopScan(torch.autograd.Function):
    """Time is the first axis inside, so that the states of a step are one piece of memory."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> Any:
        u, delta, b, c = (x.transpose(0, 1) for x in (u, delta, b, c))  # (l b ..)
        y, chunks, h = torch.empty_like(u), [], state
        for start in range(0, len(u), CHUNK):
            now = slice(start, start + CHUNK)
            chunks.append(h)
            _, states = chunk_states(u[now], delta[now], a, b[now], h)
            y[now] = (states @ c[now].unsqueeze(-1)).squeeze(-1)
            h = states[-1].clone()
        ctx.save_for_backward(u, delta, a, b, c, *chunks)
        last = h if chunks else state.clone()
        ctx.mark_non_differentiable(last)
        return y.transpose(0, 1), last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, _: Tensor) -> Any:
        u, delta, a, b, c, *chunks = ctx.saved_tensors
        grad_y = grad_y.transpose(0, 1)
        grads = [
            torch.empty_like(u),
            torch.empty_like(delta),
            torch.zeros_like(a),
            torch.empty_like(b),
            torch.empty_like(c),
        ]
        grad_u, grad_delta, grad_a, grad_b, grad_c = grads
        later = (
            torch.zeros_like(chunks[0]) if chunks else None
        )  # the gradient of the chunk's last state from later steps
        for index in reversed(range(len(chunks))):
            now = slice(index * CHUNK, (index + 1) * CHUNK)
            d, dy = delta[now], grad_y[now]
            decay, states = chunk_states(u[now], d, a, b[now], chunks[index])
            grad_c[now] = (dy.unsqueeze(-2) @ states).squeeze(-2)
            before = torch.cat((chunks[index][None], states[:-1]))  # h_{t−1}
            g = dy.unsqueeze(-1) * c[now].unsqueeze(-2)  # to become ∂loss/∂h_t (t b e n)
            g[-1] += later
            for t in range(len(g) - 2, -1, -1):
                g[t].addcmul_(decay[t + 1], g[t + 1])
            later = decay[0] * g[0]
            through = g * decay * before  # ∂loss/∂(Δ_t A)
            grad_a += (through * d.unsqueeze(-1)).sum((0, 1))
            per_input = (g @ b[now].unsqueeze(-1)).squeeze(-1)  # ∂loss/∂(Δ_t u_t)
            grad_b[now] = ((d * u[now]).unsqueeze(-2) @ g).squeeze(-2)
            grad_u[now] = per_input * d
            grad_delta[now] = per_input * u[now] + (through * a).sum(-1)
        return *(x if x is grad_a else x.transpose(0, 1) for x in grads), None


def chunk_states(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The decays and the states (t b e n) of one chunk that begins after the state h (b e n)."""
    decay = torch.exp(delta.unsqueeze(-1) * a)
    states = (delta * u).unsqueeze(-1) * b.unsqueeze(-2)
    for t in range(len(states)):
        h = states[t].addcmul_(decay[t], h)
    return decay, states
