"""Rows as blocks of S tokens, and the losses of all blocks from one pass."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.rows import row_nats, rows_where, spread
from unmask.errors import UserError
from unmask.shapes import Network


def in_blocks(values: Tensor, size: int, fill: float | bool) -> Tensor:
    """Values (b l) as blocks (b·blocks, size); the last block of a row is filled up."""
    return pad(values, (0, -values.shape[1] % size), value=fill).view(-1, size)


def in_rows(blocks: Tensor, like: Tensor) -> Tensor:
    """The opposite: blocks (b·blocks, size) as values in the shape of `like`."""
    return blocks.reshape(len(like), -1)[:, : like.shape[1]]


def given_tokens(clean: CleanRows, *, first: bool) -> Bool[Tensor, "b l"]:
    """The tokens that are never hidden: the frozen ones, and the first of a row if it is always given."""
    given = ~clean.free
    return given | (torch.arange(given.shape[1], device=given.device) == 0) if first else given


def opening_tokens(given: Bool[Tensor, "b l"], size: int) -> Bool[Tensor, "b l"]:
    """The first token of each block, where it is not given."""
    return ~given & (torch.arange(given.shape[1], device=given.device) % size == 0)


def block_nats(
    network: Network,
    x0: Int[Tensor, "b l"],
    x_t: Int[Tensor, "b l"],
    *,
    size: int,
    mask: int,
    opening: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b l"]:
    """−log p(x_i | x_t^b, x^{<b}) at hidden positions, 0 elsewhere: one pass for all blocks.

    At `opening` positions, which x_t shows, it is −log p(x_i | x^{<b}).
    """
    rows = rows_where((x_t == mask) if opening is None else (x_t == mask) | opening)
    if not len(rows):
        return torch.zeros(x0.shape, device=x0.device)
    sigma = torch.zeros(len(x0), device=x0.device)
    logits = network(x_t, sigma, rows, clean=x0, size=size, **({} if opening is None else {"opens": True}))
    return spread(row_nats(logits, x0.flatten()[rows], mask=mask), rows, x0)


def check_block_size(size: int) -> None:
    if size < 1:
        raise UserError(f"a block needs at least one token: objective.size must be 1 or more; saw {size}.")
