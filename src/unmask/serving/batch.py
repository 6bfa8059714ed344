"""Batching: requests with the same policy and settings become one of many rows, and are split again.

No row depends on another, so this changes nothing but the time: one plan, one choice and one draw for all works
instead of one for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from unmask.sampling.guidance import ClassifierFree
from unmask.sampling.masked import Span, Work
from unmask.sampling.process import Process
from unmask.text.prompt.canvas import Canvas


@dataclass(frozen=True)
class Job:
    """A request being sampled: a process and its state."""

    process: Process
    state: Any

    @property
    def canvas(self) -> Canvas:
        return self.process.canvas(self.state)

    @property
    def done(self) -> bool:
        return self.process.done(self.state)

    @property
    def moving(self) -> bool:
        """Whether tokens may be replaced without being hidden before, as in continuous diffusion."""
        return not (isinstance(self.state, Work) or self.done)


def width(job: Job) -> int:
    return job.canvas.tokens.shape[1]


def passes(job: Job) -> int:
    """Forward passes per row and call: guidance needs one with and one without the given text."""
    return 2 if isinstance(job.state, Work) and isinstance(job.state.options.hook, ClassifierFree) else 1


def alike(a: Job, b: Job) -> bool:
    """Whether two requests can be drawn as one: masked diffusion, same policy, same settings, one window each."""
    if not (isinstance(a.state, Work) and isinstance(b.state, Work)):
        return False
    whole = all(job.state.spans == (Span(0, width(job), 0, width(job)),) for job in (a, b))
    kinds = [[(memory.dim(), memory.shape[2:]) for memory in job.state.memory] for job in (a, b)]
    return whole and a.state.policy == b.state.policy and a.state.options == b.state.options and kinds[0] == kinds[1]


def groups(jobs: Sequence[Job], apart: Sequence[bool], *, most: int) -> list[list[int]]:
    """The indices of requests that can be joined, by group; a group of several has at most `most` positions.

    Requests with different `apart` are never joined.
    """
    members: list[list[int]] = []
    sizes: list[int] = []
    for i, job in enumerate(jobs):
        size = job.canvas.tokens.numel() * passes(job)
        for number, group in enumerate(members):
            if apart[group[0]] == apart[i] and sizes[number] + size <= most and alike(jobs[group[0]], job):
                group.append(i)
                sizes[number] += size
                break
        else:
            members.append([i])
            sizes.append(size)
    return members


def join(jobs: Sequence[Job]) -> Job:
    """All rows in one request, the shorter ones padded at their end."""
    if len(jobs) == 1:
        return jobs[0]
    works: list[Work] = [job.state for job in jobs]
    first, most = works[0], max(map(width, jobs))
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
    joined = replace(
        first,
        canvas=canvas,
        key=torch.cat([work.key for work in works]),
        clock=torch.cat([work.clock for work in works]),
        memory=memory,
        spans=(Span(0, most, 0, most),),
    )
    return replace(jobs[0], state=joined)


def split_work(joined: Job, jobs: Sequence[Job]) -> list[Job]:
    """The joined requests, split again, with their own settings."""
    if len(jobs) == 1:
        own = joined.state
        return [replace(jobs[0], state=replace(own, options=jobs[0].state.options) if isinstance(own, Work) else own)]
    after = joined.state
    sizes = [len(job.state.key) for job in jobs]
    tokens, clocks = after.canvas.tokens.split(sizes), after.clock.split(sizes)
    memories = zip(*(memory.split(sizes) for memory in after.memory), strict=True) if after.memory else iter(())
    going = iter(after.canvas.hidden.any(1).tolist())
    parts = []
    for i, job in enumerate(jobs):
        work = job.state
        canvas = work.canvas.with_tokens(tokens[i][:, : width(job)])
        memory = tuple(one[:, : width(job)] if one.dim() > 1 else one for one in next(memories, ()))
        spans = work.spans if any([next(going) for _ in range(sizes[i])]) else ()
        parts.append(replace(job, state=replace(work, canvas=canvas, clock=clocks[i], memory=memory, spans=spans)))
    return parts


def own_lengths(work: Work) -> Tensor:
    return (
        torch.full_like(work.clock, work.canvas.tokens.shape[1])
        if work.canvas.lengths is None
        else work.canvas.lengths
    )


def own_spaced(work: Work) -> Tensor:
    return torch.zeros_like(work.canvas.frozen) if work.canvas.spaced is None else work.canvas.spaced


def wider(values: Tensor, most: int, fill: int | bool) -> Tensor:
    """Values (b w ..) padded to (b most ..); values per row (b) are unchanged."""
    if values.dim() == 1 or values.shape[1] == most:
        return values
    behind = [0, 0] * (values.dim() - 2)
    return pad(values, [*behind, 0, most - values.shape[1]], value=fill)
