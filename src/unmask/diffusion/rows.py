"""Rows: the flat positions, row-major over (b l), that a network is asked for; the head runs nowhere else."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError


def rows_where(chosen: Bool[Tensor, "b l"]) -> Int[Tensor, " n"]:
    """The flat positions where `chosen` is true."""
    return chosen.flatten().nonzero().squeeze(-1)


def spread(values: Float[Tensor, " n"], rows: Int[Tensor, " n"], x: Int[Tensor, "b l"]) -> Float[Tensor, "b l"]:
    """Values at their rows in the shape of x, 0 everywhere else."""
    return values.new_zeros(x.numel()).index_put((rows,), values).view(x.shape)


def forbid(logits: Float[Tensor, "*n v"], mask: int) -> Float[Tensor, "*n v"]:
    """Zero-masking: the mask itself is never predicted. [MDLM §3.2.3]"""
    if not 0 <= mask < logits.shape[-1]:
        raise UserError(f"the mask id must be one of the network's {logits.shape[-1]} ids; saw {mask}.")
    return logits.index_fill(-1, torch.tensor([mask], device=logits.device), -torch.inf)


def row_nats(logits: Float[Tensor, "n v"], true: Int[Tensor, " n"], *, mask: int) -> Float[Tensor, " n"]:
    """−log p(true token) at each row under a softmax without the mask."""
    if len(true) and int(true.max()) >= logits.shape[-1]:
        raise UserError(f"token id {int(true.max())} is outside the network's vocabulary of {logits.shape[-1]} ids.")
    return torch.nn.functional.cross_entropy(forbid(logits, mask), true, reduction="none")
