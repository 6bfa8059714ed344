"""Pieces: passes over a row that is filled block by block, with a memory of the finished blocks.

A pass over a piece of a row has these elements: finished blocks that the memory lacks, the block to predict, and a
lead, if the block's first position is asked of a network that predicts it from the position before (`doubled`). The
finished blocks are then remembered: storing a block takes no pass of its own, the first pass of the next one does it.

The window is sliding-window attention: in every layer a block sees the blocks of the last `window` tokens, its own
included. Older text has an influence only through the states of the blocks in between. Keys are rotated by their
positions in the whole text, and a rotation depends on distances alone, so there is no limit on the length of a text.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.model.key_values import KeyValues
from unmask.model.passing import Full, Memory, Pass, Rule


@dataclass(frozen=True)
class BlockRule:
    """How a model sees blocks."""

    size: int  # tokens per block
    window: int  # tokens that a block sees, its own included, in every layer: whole blocks of them
    before: bool = False  # position i is predicted from the state of i − 1
    short: int = 0  # tokens that the first block has less than the others


def piece(
    rule: BlockRule,
    tokens: Int[Tensor, " m"],
    memory: Memory,
    *,
    first: int,
    wanted: Int[Tensor, " k"],
    lead: int | None = None,
) -> Pass:
    """The pass for one row: finished text to remember, then a block to predict.

    tokens  from the first token that the memory lacks to the end of the block
    first   position of the block's first token
    wanted  columns of the block whose states are needed
    lead    the token before the block, where there is one and a state of it is needed
    """
    filled, stored = memory.filled, first - memory.filled
    block = len(tokens) - stored
    led = rule.before and lead is not None
    seen = max(1, rule.window // rule.size)  # blocks
    number = ((filled if stored else first) + rule.short) // rule.size
    low = min(max(0, (number + 1 - seen) * rule.size - rule.short), filled)
    lag = (low + rule.short) % rule.size
    visible = visibility(filled - low, stored, block, led, rule.size, seen, lag, tokens.device)
    position = None
    if led:
        tokens = torch.cat([tokens, tokens.new_tensor([lead])])
        position = torch.tensor([*range(filled, first + block), first - 1], device=tokens.device)
    states = wanted + stored
    if rule.before:  # the state of column 0 is the lead's, or its own where there is no token before it
        states = torch.where(wanted > 0, states - 1, stored + block if led else stored)
    return Pass(
        tokens[None],
        Full() if visible is None else Rule(visible),
        position,
        memory=memory.since(low) if isinstance(memory, KeyValues) else memory,
        keep=stored,
        wanted=states,
    )


@lru_cache(maxsize=256)
def visibility(
    remembered: int, stored: int, block: int, led: bool, size: int, seen: int, lag: int, device: torch.device
) -> Bool[Tensor, "m keys"] | None:
    """visible[i, j]: element i sees key j of [kept; finished; block; lead]. All but the last two are whole blocks,
    the first of them perhaps without its first `lag` tokens."""
    with torch.inference_mode(False):
        past = remembered + stored
        key = torch.arange(past + block, device=device)
        last = (past + lag) // size
        number = torch.where(key < past, (key + lag) // size, last)
        query = torch.cat([number[remembered:], number.new_full((int(led),), last)])[:, None]
        visible = (number <= query) & (number > query - seen)
        if led:
            visible[-1] = visible[-1] & (key != past)  # the lead does not see the position that it predicts
            visible = torch.nn.functional.pad(visible, (0, 1))  # and nothing sees the lead
        return None if bool(visible.all()) else visible
