"""When to look: times t in (0, 1], numbers of masks k in 1..l, and grids for samplers.

Every function turns given uniforms in [0, 1) into times, so the same uniforms give the same times.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.errors import UserError


def check_uniforms(u: Tensor) -> None:
    if u.numel() == 0:
        raise UserError("an empty batch: there is nothing to draw times for.")
    if not bool(((u >= 0) & (u <= 1)).all()):
        raise UserError(f"uniform numbers must lie in [0, 1]; saw {u.min().item()} to {u.max().item()}.")


def stratified(u: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """(u_i + i)/b: one time in each of b equal cells. The reference calls it antithetic. [MDLM]"""
    check_uniforms(u)
    cell = torch.arange(len(u), dtype=u.dtype, device=u.device)
    return (u / len(u) + cell / len(u)) % 1


def one_offset(u: Float[Tensor, ""], rows: int) -> Float[Tensor, " b"]:
    """(u + i/b) mod 1: a comb of b teeth, moved by one uniform number. [VDM]"""
    check_uniforms(u)
    if rows < 1:
        raise UserError(f"a batch needs at least one row; saw {rows}.")
    return (u + torch.arange(rows, dtype=u.dtype, device=u.device) / rows) % 1


def away_from_zero(u: Float[Tensor, " b"], *, eps: float = 1e-3) -> Float[Tensor, " b"]:
    """ε + (1 − ε) u: keeps the weight 1/t of the bound finite; [0, ε] is never looked at. [MDLM]"""
    if not 0 <= eps < 1:
        raise UserError(f"eps must lie in [0, 1); saw {eps}.")
    return (1 - eps) * u + eps


def steps(u: Float[Tensor, " b"], *, total: int) -> Int[Tensor, " b"]:
    """A step i of the T-step process for each u: uniform over 1..T, the first step included."""
    check_total(total)
    check_uniforms(u)
    return (u * total).long().clamp(max=total - 1) + 1


def counts(u: Float[Tensor, " b"], free: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """A number of masks k for each row: uniform over 1..free. With `stratified(u)` the k are spread evenly."""
    check_uniforms(u)
    if not bool((free >= 1).all()):
        raise UserError("every row needs at least one position that may be masked; a row has none.")
    return torch.minimum((u * free).long(), free - 1) + 1


def grid(total: int, *, last: float = 0.0) -> Float[Tensor, " steps"]:
    """T + 1 times from 1 down to `last`, evenly spaced, in float64. The reference ends at 1e-5."""
    check_total(total)
    if not 0 <= last < 1:
        raise UserError(f"a grid must end in [0, 1); saw {last}.")
    return torch.linspace(1, last, total + 1, dtype=torch.float64)


def check_total(total: int) -> None:
    if total < 1:
        raise UserError(f"the number of steps must be at least 1; saw {total}.")
