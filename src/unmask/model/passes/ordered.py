"""Ordered rows: tokens read in any order, each predicted from those read before it. [XLNet's two streams]

A pass has two elements per position of a row, both at the position's own place:

    content  the token; it sees itself and the contents that are read before it
    query    a mask; it sees the contents that are read before its position, and itself. Nothing else sees a query

All tokens are thus predicted in one pass, each from what was read before it. Contents know nothing of the queries, so
what is remembered of them serves any later question: `unread` reads new contents and asks at any blanks.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.passing import Memory, Pass, Rule


def ordered_pass(
    spec: Spec,
    queries: Int[Tensor, "b l"],
    clean: Int[Tensor, "b l"],
    rank: Int[Tensor, "b l"],
    *,
    rows: Int[Tensor, " n"],
    lengths: Int[Tensor, " b"] | None = None,
    allowed: Bool[Tensor, "l l"] | None = None,
) -> Pass:
    """The pass whose states predict flat positions, each from the clean tokens of lower rank.

    queries  what stands at a position that is asked for: masks
    rank     the order of reading: 0 is read first. A row has each rank once
    """
    check_ordered(spec)
    l = clean.shape[1]
    place = torch.arange(l, device=clean.device)
    earlier = rank[:, :, None] > rank[:, None, :]
    if allowed is not None:
        earlier = earlier & allowed
    own = torch.eye(l, dtype=torch.bool, device=clean.device).expand_as(earlier)
    contents = torch.cat([earlier | own, torch.zeros_like(earlier)], -1)
    visible = torch.cat([contents, torch.cat([earlier, own], -1)], 1)
    return Pass(
        torch.cat([clean, queries], 1),
        Rule(visible),
        torch.cat([place, place]),
        lengths=lengths,
        wanted=rows // l * (2 * l) + l + rows % l,
    )


def unread(
    tokens: Int[Tensor, " k"],
    places: Int[Tensor, " k"],
    asked: Int[Tensor, " n"],
    memory: Memory | None,
    *,
    mask: int,
) -> Pass:
    """The pass that reads more tokens of a row, in this order, and asks at the positions `asked`.

    The memory holds the tokens that were read before. The new ones are remembered, the queries are not.
    """
    k, n = len(tokens), len(asked)
    new = torch.ones(k, k, dtype=torch.bool, device=tokens.device).tril()
    contents = torch.cat([new, new.new_zeros(k, n)], 1)
    queries = torch.cat([new.new_ones(n, k), torch.eye(n, dtype=torch.bool, device=tokens.device)], 1)
    return Pass(
        torch.cat([tokens, tokens.new_full((n,), mask)])[None],
        Rule(torch.cat([contents, queries])),
        torch.cat([places, asked]),
        memory=memory,
        keep=None if memory is None else k,
        wanted=torch.arange(k, k + n, device=tokens.device),
    )


def check_ordered(spec: Spec) -> None:
    """Refuse a network that cannot read in any order."""
    if not spec.blockwise or spec.before:
        raise UserError(
            f"this {spec.name} cannot read in any order: the objective any-order needs a network with attention, "
            "without time_conditioning, that predicts each position at its own place (reads_before = false)."
        )
