"""Batching: works with the same policy and settings become one work of many rows, and are split again.

No row depends on another, so this changes nothing but the time: one plan, one choice and one draw for all works
instead of one for each.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from unmask.sampling.guidance import ClassifierFree
from unmask.sampling.masked import Span, Work
from unmask.text.prompt.canvas import Canvas


def width(work: Work) -> int:
    return work.canvas.tokens.shape[1]


def passes(work: object) -> int:
    """Forward passes per row and call: guidance needs one with and one without the given text."""
    return 2 if isinstance(work, Work) and isinstance(work.options.hook, ClassifierFree) else 1


def alike(a: Work, b: Work) -> bool:
    """Whether two works can be joined: same policy, same `LogitOptions`, and one window each."""
    whole = all(work.spans == (Span(0, width(work), 0, width(work)),) for work in (a, b))
    kinds = [[(memory.dim(), memory.shape[2:]) for memory in work.memory] for work in (a, b)]
    return whole and a.policy == b.policy and a.options == b.options and kinds[0] == kinds[1]


def groups(works: Sequence[Work], apart: Sequence[bool], *, most: int) -> list[list[int]]:
    """The indices of works that can be joined, by group; a group of several works has at most `most` positions.

    Works with different `apart` are never joined.
    """
    found: list[list[int]] = []
    sizes: list[int] = []
    for i, work in enumerate(works):
        size = work.canvas.tokens.numel() * passes(work)
        for number, group in enumerate(found):
            if apart[group[0]] == apart[i] and sizes[number] + size <= most and alike(works[group[0]], work):
                group.append(i)
                sizes[number] += size
                break
        else:
            found.append([i])
            sizes.append(size)
    return found


def join(works: Sequence[Work]) -> Work:
    """All rows in one work, the shorter ones padded at their end."""
    if len(works) == 1:
        return works[0]
    first, most = works[0], max(map(width, works))
    lengths = torch.cat([own_lengths(work) for work in works])
    spaced = torch.cat([wider(own_spaced(work), most, False) for work in works])
    canvas = Canvas(
        torch.cat([wider(work.canvas.tokens, most, first.canvas.mask) for work in works]),
        torch.cat([wider(work.canvas.frozen, most, True) for work in works]),
        first.canvas.mask,
        lengths if bool((lengths < most).any()) else None,
        spaced if bool(spaced.any()) else None,
    )
    memory = tuple(
        torch.cat([wider(one, most, 0) for one in same]) for same in zip(*(w.memory for w in works), strict=True)
    )
    return replace(
        first,
        canvas=canvas,
        key=torch.cat([work.key for work in works]),
        clock=torch.cat([work.clock for work in works]),
        memory=memory,
        spans=(Span(0, most, 0, most),),
    )


def split_work(joined: Work, works: Sequence[Work]) -> list[Work]:
    """The joined works, split again."""
    if len(works) == 1:
        return [joined]
    sizes = [len(work.key) for work in works]
    tokens, clocks = joined.canvas.tokens.split(sizes), joined.clock.split(sizes)
    memories = zip(*(memory.split(sizes) for memory in joined.memory), strict=True) if joined.memory else iter(())
    going = iter(joined.canvas.hidden.any(1).tolist())
    found = []
    for i, work in enumerate(works):
        canvas = work.canvas.with_tokens(tokens[i][:, : width(work)])
        memory = tuple(one[:, : width(work)] if one.dim() > 1 else one for one in next(memories, ()))
        spans = work.spans if any([next(going) for _ in range(sizes[i])]) else ()
        found.append(replace(work, canvas=canvas, clock=clocks[i], memory=memory, spans=spans))
    return found


def own_lengths(work: Work) -> Tensor:
    return torch.full_like(work.clock, width(work)) if work.canvas.lengths is None else work.canvas.lengths


def own_spaced(work: Work) -> Tensor:
    return torch.zeros_like(work.canvas.frozen) if work.canvas.spaced is None else work.canvas.spaced


def wider(values: Tensor, most: int, fill: int | bool) -> Tensor:
    """Values (b w ..) padded to (b most ..); values per row (b) are unchanged."""
    if values.dim() == 1 or values.shape[1] == most:
        return values
    behind = [0, 0] * (values.dim() - 2)
    return pad(values, [*behind, 0, most - values.shape[1]], value=fill)
