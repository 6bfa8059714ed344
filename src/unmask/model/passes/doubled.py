"""Doubled rows: one pass over noisy blocks, each given the clean text before it. [BD3-LM]

The pass has these elements, each with its own position: the noisy row, the clean row without its last block (nobody
sees that one), and, where a network predicts position i from the state of i − 1, the leads.

    noisy   sees its own noisy block, and the clean blocks before it
    clean   sees its own clean block, and the clean blocks before it
    lead    a second reading of the last clean token before a block, for the block's first position: it sees the clean
            blocks before the block, and the noisy block without its first position. That one is a mask whenever it is
            asked for, so nothing is lost; and in blocks of one token a lead is exactly the state of a causal network.
            Nothing sees a lead.

A model that `opens` its blocks predicts a block's first token from the finished text alone, at the clean token before
it; it has no leads. [Fast-dLLM v2]
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.passing import Pass, Rule


@dataclass(frozen=True)
class Elements:
    """The elements of a pass over rows of one length."""

    source: Int[Tensor, " m"]  # where an element's token stands in [noisy row; clean row]
    position: Int[Tensor, " m"]
    visible: Bool[Tensor, "m m"]  # visible[i, j]: element i sees element j
    state: Int[Tensor, " l"]  # the element that predicts each position of the noisy row


@lru_cache(maxsize=16)
def halves(length: int, size: int, *, leads: bool, device: torch.device, opens: bool = False) -> Elements:
    """The elements for rows of `length` tokens in blocks of `size`; the last block may be shorter."""
    with torch.inference_mode(False):  # kept for training too
        return make_elements(length, size, leads=leads, device=device, opens=opens)


def make_elements(length: int, size: int, *, leads: bool, device: torch.device, opens: bool) -> Elements:
    place = torch.arange(length, device=device)
    before = place[: (length - 1) // size * size]  # the clean text that some noisy block sees
    first = place[size::size] if leads and not opens else place[:0]  # first positions of the blocks with a lead
    position = torch.cat([place, before, first - 1])
    source = torch.cat([place, before + length, first - 1 + length])
    kind = torch.tensor([0, 1, 2], device=device).repeat_interleave(
        torch.tensor([length, len(before), len(first)], device=device)
    )
    block = torch.cat([place, before, first]) // size  # of a lead: the block that it leads
    q, k = kind[:, None], kind
    earlier, same = block[:, None] > block, block[:, None] == block
    visible = (k == 1) & (earlier | (same & (q == 1)))
    visible = visible | ((k == 0) & same & (q == 0))
    visible = visible | ((k == 0) & same & (q == 2) & (position > position[:, None] + 1))
    state = place
    if leads:
        state = (place - 1).clamp(min=0)
        state = state.index_copy(0, first, length + len(before) + torch.arange(len(first), device=device))
        if opens:
            state[size::size] += length  # the clean token
    return Elements(source, position, visible, state)


def doubled_pass(
    spec: Spec,
    noisy: Int[Tensor, "b l"],
    clean: Int[Tensor, "b l"],
    size: int,
    *,
    rows: Int[Tensor, " n"],
    lengths: Int[Tensor, " b"] | None = None,
    allowed: Bool[Tensor, "l l"] | None = None,
    opens: bool = False,
) -> Pass:
    """The pass whose states predict flat positions of noisy blocks, each given the clean text before it.

    No block sees another one's noise. `allowed` restricts further who sees whom.
    """
    check_blockwise(spec)
    l = noisy.shape[1]
    both = halves(l, size, leads=spec.before, device=noisy.device, opens=opens)
    visible = both.visible if allowed is None else both.visible & allowed[both.position][:, both.position]
    wanted = rows // l * len(both.position) + both.state[rows % l]
    tokens = torch.cat([noisy, clean], 1)[:, both.source]
    return Pass(tokens, Rule(visible), both.position, lengths=lengths, wanted=wanted)


def check_blockwise(spec: Spec) -> None:
    """Refuse a network that cannot be a block model."""
    if not spec.blockwise:
        raise UserError(
            f"the backbone {spec.name!r} cannot look block by block: it has no block diffusion and no cache of "
            "blocks. Use a network with attention, without time_conditioning, such as a transformer."
        )
