"""The KV cache of one row that is filled block by block, and what the elements of a blockwise pass see with it.

A pass over a piece of a row has these elements: finished blocks that the cache lacks, the block to predict, and a
lead, if the block's first position is asked of a network that predicts it from the position before (`halves`). The
finished blocks are then in the cache, so storing a block takes no pass of its own: the first pass of the next one
does it.

The window is sliding-window attention: in every layer a block sees the blocks of the last `window` tokens, its own
included. Older text has an influence only through the states of the blocks in between. Keys are rotated by their
positions in the whole text, and a rotation depends on distances alone, so there is no limit on the length of a text.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.model.backbone import RowPiece

Keys = Float[Tensor, "room h e"]


@dataclass(frozen=True)
class RowCache:
    """Rotated keys and values of the last finished blocks of one row, in every layer."""

    filled: int = 0  # tokens read so far: whole blocks
    start: int = 0  # position of the first one that is kept
    pairs: tuple[tuple[Keys, Keys], ...] = ()  # per layer; the kept tokens come first, the rest is room

    @property
    def room(self) -> int:
        return len(self.pairs[0][0]) if self.pairs else 0


@dataclass(frozen=True)
class Glance:
    """The elements of one piece among those of a pass, and what they see."""

    piece: RowPiece
    cache: RowCache
    at: int  # its first element
    stored: int  # finished tokens: the first elements
    block: int  # tokens of the block: the elements after them
    led: bool  # whether a lead is the last element
    low: int  # position of the first token that one of them sees
    visible: Bool[Tensor, "m keys"] | None  # None: all of them see everything

    @property
    def elements(self) -> int:
        return self.stored + self.block + self.led

    @property
    def positions(self) -> list[int]:
        end = self.cache.filled + self.stored + self.block
        return [*range(self.cache.filled, end), *([self.piece.first - 1] if self.led else [])]

    @property
    def tokens(self) -> Int[Tensor, " m"]:
        if not self.led:
            return self.piece.tokens
        return torch.cat([self.piece.tokens, self.piece.tokens.new_tensor([self.piece.lead])])

    def states(self, *, before: bool) -> list[int]:
        """The elements that predict the wanted columns; `before`: a position is predicted from the one before it."""
        block = self.at + self.stored
        first = block + self.block if self.led else block
        return [block + c - before if c or not before else first for c in self.piece.wanted.tolist()]

    @property
    def moves(self) -> bool:
        """Whether what is kept moves to new tensors, because the old ones have no room left."""
        return self.cache.room < self.cache.filled - self.cache.start + self.stored + self.block

    @property
    def start(self) -> int:
        """Position of the first token in the tensors of this pass."""
        return self.low if self.moves else self.cache.start

    def extended(
        self, layer: int, k: Float[Tensor, "m h e"], v: Float[Tensor, "m h e"]
    ) -> tuple[Float[Tensor, "seen h e"], Float[Tensor, "seen h e"], tuple[Keys, Keys]]:
        """The keys and values that the elements may see in a layer, and the tensors that hold them.

        New ones are written after those that are kept. The next pass keeps the finished blocks and writes over the
        rest.
        """
        cache, size = self.cache, self.stored + self.block
        kept = cache.filled - self.start
        if self.moves:
            room = 2 * (kept + size)
            pair = (k.new_empty(room, *k.shape[1:]), v.new_empty(room, *v.shape[1:]))
            if kept:
                for new, old in zip(pair, cache.pairs[layer], strict=True):
                    new[:kept] = old[self.low - cache.start : cache.filled - cache.start]
        else:
            pair = cache.pairs[layer]
        for into, new in zip(pair, (k, v), strict=True):
            into[kept : kept + size] = new[:size]
        seen = slice(self.low - self.start, kept + size)
        return pair[0][seen], pair[1][seen], pair


def glance(piece: RowPiece, at: int, *, before: bool) -> Glance:
    """The elements of a piece, from `at` on; `before`: a position is predicted from the one before it."""
    cache = piece.memory
    assert isinstance(cache, RowCache)
    stored = piece.first - cache.filled
    block = len(piece.tokens) - stored
    led = before and piece.lead is not None and bool((piece.wanted == 0).any())
    seen = max(1, piece.window // piece.size)  # blocks
    low = max(0, (cache.filled if stored else piece.first) // piece.size + 1 - seen) * piece.size
    low = min(low, cache.filled)
    visible = visibility(cache.filled - low, stored, block, led, piece.size, seen, piece.tokens.device)
    return Glance(piece, cache, at, stored, block, led, low, visible)


@lru_cache(maxsize=256)
def visibility(
    kept: int, stored: int, block: int, led: bool, size: int, seen: int, device: torch.device
) -> Bool[Tensor, "m keys"] | None:
    """visible[i, j]: element i sees key j of [kept; finished; block]. All but the last are whole blocks."""
    with torch.inference_mode(False):
        past = kept + stored
        key = torch.arange(past + block, device=device)
        number = torch.where(key < past, key // size, past // size)
        query = torch.cat([number[kept:], number.new_full((int(led),), past // size)])[:, None]
        visible = (number <= query) & (number > query - seen)
        if led:
            visible[-1] = visible[-1] & (key != past)  # the lead does not see the position that it predicts
        return None if bool(visible.all()) else visible
