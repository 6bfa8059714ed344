"""The forward process q(x_t | x_0): hide tokens that are not frozen."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError


def check_clean(x0: Int[Tensor, "b l"], *, mask: int, vocab: int | None = None) -> None:
    """Refuse clean text that is empty, contains the mask, or contains an id outside the vocabulary."""
    if x0.numel() == 0:
        raise UserError(f"an empty batch of tokens: shape {tuple(x0.shape)}.")
    if bool((x0 == mask).any()):
        row, position = (x0 == mask).nonzero()[0].tolist()
        raise UserError(f"clean text holds the mask id {mask} at row {row}, position {position}.")
    low, high = int(x0.min()), int(x0.max())
    if low < 0 or (vocab is not None and high >= vocab):
        limit = "ids must not be negative" if vocab is None else f"ids run from 0 to {vocab - 1}"
        raise UserError(f"token id {low if low < 0 else high} is outside the vocabulary: {limit}.")


def hide(
    x0: Int[Tensor, "b l"],
    hidden: Float[Tensor, " b"],
    u: Float[Tensor, "b l"],
    *,
    mask: int,
    frozen: Bool[Tensor, "b l"] | None = None,
) -> Int[Tensor, "b l"]:
    """Hide each token that is not frozen with probability 1 − α_t: where its uniform is below it. [MDLM eq. 3]"""
    chosen = u < hidden[:, None]
    return torch.where(chosen if frozen is None else chosen & ~frozen, mask, x0)


def hide_count(
    x0: Int[Tensor, "b l"],
    k: Int[Tensor, " b"],
    u: Float[Tensor, "b l"],
    *,
    mask: int,
    frozen: Bool[Tensor, "b l"] | None = None,
) -> Int[Tensor, "b l"]:
    """Hide exactly k of a row's free tokens: those with the smallest uniforms, so all sets are equally likely."""
    order = u if frozen is None else u.masked_fill(frozen, torch.inf)
    free = order.shape[1] - (0 if frozen is None else frozen.sum(1))
    if bool((k > free).any()) or bool((k < 0).any()):
        raise UserError(f"the number of masks must lie in 0..the free positions of a row; saw k = {k.tolist()}.")
    rank = order.argsort(1).argsort(1)  # 0 for the smallest uniform of a row
    return torch.where(rank < k[:, None], mask, x0)
