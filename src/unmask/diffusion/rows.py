"""Rows: the flat positions, row-major over (b l), at which logits are needed; the head runs only there."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from unmask.errors import UserError


def rows_where(chosen: Bool[Tensor, "b l"]) -> Int[Tensor, " n"]:
    """The flat positions where `chosen` is true."""
    return chosen.flatten().nonzero().squeeze(-1)


def spread(values: Float[Tensor, " n"], rows: Int[Tensor, " n"], x: Int[Tensor, "b l"]) -> Float[Tensor, "b l"]:
    """Values at their rows, in the shape of x; 0 elsewhere."""
    return values.new_zeros(x.numel()).index_put((rows,), values).view(x.shape)


def pick(values: Float[Tensor, "n v"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    return values.gather(-1, index[:, None]).squeeze(-1)


def check_mask(mask: int, vocab: int) -> None:
    if not 0 <= mask < vocab:
        raise UserError(f"the mask id must be one of the network's {vocab} ids; saw {mask}.")


def forbid(logits: Float[Tensor, "*n v"], mask: int) -> Float[Tensor, "*n v"]:
    """Zero-masking, one half of SUBS: the mask itself is never predicted. [MDLM §3.2.3]"""
    check_mask(mask, logits.shape[-1])
    return logits.index_fill(-1, torch.tensor([mask], device=logits.device), -torch.inf)


def row_nats(logits: Float[Tensor, "n v"], true: Int[Tensor, " n"], *, mask: int) -> Float[Tensor, " n"]:
    """−log p(true token) at each row under a softmax without the mask."""
    check_mask(mask, logits.shape[-1])
    if len(true) and int(true.max()) >= logits.shape[-1]:
        raise UserError(f"token id {int(true.max())} is outside the network's vocabulary of {logits.shape[-1]} ids.")
    nats: Float[Tensor, " n"] = RowNats.apply(logits, true, mask)
    return nats


class RowNats(torch.autograd.Function):
    """The cross-entropy of rows, a few at a time so that they stay in the cache. Only the gradient is as large as
    the logits; index_fill and log_softmax with their backward passes would keep four copies."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, true: Tensor, mask: int) -> Tensor:
        log_sum = logits.new_empty(len(logits))
        for part in parts(logits):
            log_sum[part] = forbid(logits[part], mask).logsumexp(1)
        ctx.save_for_backward(logits, true, log_sum)
        ctx.mask = mask
        seen = logits.gather(1, true[:, None]).squeeze(1)
        return log_sum - seen.masked_fill(true == mask, -torch.inf)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, None, None]:
        """The softmax minus one at the true token, times the weight of the row."""
        logits, true, log_sum = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for part in parts(logits):
            torch.sub(logits[part], log_sum[part, None], out=gradient[part]).exp_().mul_(weight[part, None])
        gradient[:, ctx.mask] = 0
        return gradient.scatter_add_(1, true[:, None], -weight[:, None]), None, None


def parts(logits: Float[Tensor, "n v"]) -> Iterator[slice]:
    """Slices of a few rows: as many as fit into a CPU's cache, or keep a GPU busy."""
    size = max(1, (1 << 19 if logits.device.type == "cpu" else 1 << 26) // logits.shape[1])
    return (slice(start, start + size) for start in range(0, len(logits), size))
