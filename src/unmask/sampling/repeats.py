"""Repeats: tokens that would make a run of text stand twice. Drawn surest first, small models go in circles."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

COST = 20.0  # nats: enough that another token comes, and no dead end where there is none


def repeats(
    tokens: Int[Tensor, "b w"], rows: Int[Tensor, " n"], known: Bool[Tensor, "b w"], size: int
) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
    """Of the flat positions `rows`: (which, token) where the token would complete a run that stands elsewhere.

    A run is `size` tokens side by side, all of them known; it may be completed in any order, as text comes here.
    What is not seen: a token that completes the same run twice at once, as in "a _ a".
    """
    width = tokens.shape[1]
    row, position = rows // width, rows % width
    which, token = [rows[:0]], [rows[:0]]
    if width <= size:
        return which[0], token[0]
    runs, whole = tokens.unfold(1, size, 1), known.unfold(1, size, 1)  # (b starts size)
    last = runs.shape[1] - 1
    for place in range(size):
        rest = [i for i in range(size) if i != place]
        start = position - place
        almost = (start >= 0) & (start <= last) & whole[row, start.clamp(0, last)][:, rest].all(-1)
        asked = almost.nonzero().squeeze(-1)
        own, others = runs[row[asked], start[asked]][:, rest], runs[row[asked]]
        same = (others[:, :, rest] == own[:, None]).all(-1) & whole[row[asked]].all(-1)
        one, at = same.nonzero(as_tuple=True)
        which.append(asked[one])
        token.append(others[one, at, place])
    return torch.cat(which), torch.cat(token)


def without_repeats(
    logits: Float[Tensor, "n v"],
    tokens: Int[Tensor, "b w"],
    rows: Int[Tensor, " n"],
    known: Bool[Tensor, "b w"],
    size: int,
) -> Float[Tensor, "n v"]:
    """The logits, a token that would repeat a run made nearly impossible."""
    which, token = repeats(tokens, rows, known, size)
    if not len(which):
        return logits
    return logits.index_put((which, token), logits[which, token] - COST)
