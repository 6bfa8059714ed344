"""Canvas: tokens, of which some are masks to fill and some are frozen.

Unconditional sampling, continuing a prompt and infilling are one problem with different canvases.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError


@dataclass(frozen=True)
class Canvas:
    """Rows of tokens. A mask that is not frozen will be filled; a frozen token never changes.

    Rows may have different lengths: positions beyond a row's length are padding, frozen and hidden from the network.
    """

    tokens: Int[Tensor, "b l"]
    frozen: Bool[Tensor, "b l"]
    mask: int  # the mask's id
    lengths: Int[Tensor, " b"] | None = None  # None: every row is l tokens long
    spaced: Bool[Tensor, "b l"] | None = None  # where a token must begin with a space; None: nowhere

    @cached_property
    def hidden(self) -> Bool[Tensor, "b l"]:
        """Positions that are still to be filled."""
        return (self.tokens == self.mask) & ~self.frozen

    def take(self, rows: Int[Tensor, " n"]) -> "Canvas":
        lengths = None if self.lengths is None else self.lengths[rows]
        spaced = None if self.spaced is None else self.spaced[rows]
        return Canvas(self.tokens[rows], self.frozen[rows], self.mask, lengths, spaced)

    def to(self, device: torch.device) -> "Canvas":
        """A copy on another device."""
        lengths = None if self.lengths is None else self.lengths.to(device)
        spaced = None if self.spaced is None else self.spaced.to(device)
        return Canvas(self.tokens.to(device), self.frozen.to(device), self.mask, lengths, spaced)

    def with_tokens(self, tokens: Int[Tensor, "b l"]) -> "Canvas":
        return replace(self, tokens=tokens)


def blank(rows: int, length: int, *, mask: int) -> Canvas:
    """All masks: unconditional sampling."""
    if rows < 1 or length < 1:
        raise UserError(f"a canvas needs at least one row and one position; saw {rows} rows of length {length}.")
    return of_tokens(torch.full((rows, length), mask), mask=mask)


def of_tokens(tokens: Int[Tensor, "b l"], *, mask: int) -> Canvas:
    """Masks are filled, all other tokens are frozen: any pattern of blanks."""
    return Canvas(tokens, tokens != mask, mask)


def of_prompt(prompt: Sequence[int], *, length: int, rows: int = 1, mask: int) -> Canvas:
    """The prompt, frozen, then masks up to `length`."""
    if len(prompt) >= length:
        raise UserError(
            f"the prompt has {len(prompt)} tokens and the canvas {length}: nothing is left to fill. "
            "Shorten the prompt or ask for a greater length."
        )
    row = [*prompt, *[mask] * (length - len(prompt))]
    return of_tokens(torch.tensor(row).repeat(rows, 1), mask=mask)


def of_rows(rows: Sequence[Sequence[int]], *, mask: int, spaced: Sequence[Sequence[bool]] = ()) -> Canvas:
    """Rows of different lengths in one canvas: masks are filled, all other tokens are frozen, short rows are padded.

    `spaced` has a bool per token, whether it must begin with a space; empty: none must.
    """
    if not rows or any(len(row) == 0 for row in rows):
        raise UserError("a canvas needs at least one row, and every row at least one token.")
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    tokens = torch.tensor([[*row, *[mask] * (longest - len(row))] for row in rows])
    beyond = torch.arange(longest) >= lengths[:, None]
    padded = None
    if any(map(any, spaced)):
        padded = torch.tensor([[*row, *[False] * (longest - len(row))] for row in spaced])
    return Canvas(tokens, (tokens != mask) | beyond, mask, None if not bool(beyond.any()) else lengths, padded)
