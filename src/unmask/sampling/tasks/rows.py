"""Rows: a task's input with blanks, filled a batch at a time, with a trace: which token came at which call."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch

from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.process import Step
from unmask.sampling.recipe import Method, Recipe
from unmask.text.prompt.canvas import Canvas, of_rows
from unmask.text.row import Role, Row


@dataclass(frozen=True)
class TaskRow:
    """One row of ids, masks at its blanks."""

    tokens: list[int]
    start: int = 0  # first position after the prompt
    spaced: list[bool] = field(default_factory=list)  # where a token must begin with a space; empty: nowhere
    healed: bool = False  # the first drawn token contains the space at the end of the prompt
    roles: tuple[int, ...] = ()  # what each token is for; empty: masks are drawn, all else is given

    @classmethod
    def of(cls, row: Row, *, start: int = 0, spaced: Sequence[bool] = (), healed: bool = False) -> "TaskRow":
        return cls(row.tokens.tolist(), start, list(spaced), healed, tuple(row.roles.tolist()))

    @property
    def closing(self) -> int:
        """The marks at its end."""
        return next((i for i, role in enumerate(reversed(self.roles)) if role != Role.MARK), 0)

    @property
    def text(self) -> slice:
        """Its tokens without the marks around them."""
        opening = next((i for i, role in enumerate(self.roles) if role != Role.MARK), 0)
        return slice(opening, len(self.tokens) - self.closing)

    @property
    def heals(self) -> bool:
        return any(self.spaced)


def canvas_of(rows: list[TaskRow], *, mask: int, device: torch.device) -> Canvas:
    spaced = [row.spaced or [False] * len(row.tokens) for row in rows]
    return of_rows([row.tokens for row in rows], mask=mask, spaced=spaced).to(device)


def drop_unneeded_blanks(row: TaskRow, constraint: Constraint | None, *, mask: int, device: torch.device) -> TaskRow:
    """The row without blanks at its end that no match can need: after the longest match and its end token."""
    end = len(row.tokens) - row.closing
    if constraint is None or row.tokens[end - 1] != mask:
        return row
    inner = replace(row, tokens=row.tokens[:end], spaced=row.spaced[:end], roles=row.roles[:end])
    room = constraint.room(canvas_of([inner], mask=mask, device=device))
    if row.closing and not constraint.allowed:  # the frame is the end token of the longest match
        room = max(room - row.closing, row.start + 1)
    return replace(
        row,
        tokens=row.tokens[:room] + row.tokens[end:],
        spaced=row.spaced[:room] + row.spaced[end:],
        roles=row.roles[:room] + row.roles[end:],
    )


@dataclass(frozen=True, slots=True)
class Event:
    """One token drawn in a row, or hidden again: then it is the mask."""

    call: int  # the network call that drew it: 1, 2, 3, ...; 0: none was needed
    position: int
    token: int
    log_prob: float  # under the model at that moment, in nats, before temperature and truncation; 0 for the mask


@dataclass(frozen=True)
class Moment:
    """The rows `first`, `first` + 1, ... after one network call."""

    first: int
    step: Step


@dataclass(frozen=True)
class Drawn:
    """A finished row."""

    row: int  # its number
    tokens: list[int]
    trace: tuple[Event, ...]  # in the order of drawing
    seconds: float  # time of its batch

    @property
    def calls(self) -> int:
        """Network calls until its last token, waiting for its batch included."""
        return max((event.call for event in self.trace), default=0)


def draw_rows(
    method: Method,
    rows: Sequence[TaskRow],
    *,
    recipe: Recipe,
    mask: int,
    device: torch.device,
    start: int = 0,
    enough: Callable[[Canvas, Sequence[TaskRow]], bool] = lambda canvas, rows: False,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Moment | Drawn]:
    """Fill the masks of rows of one length: a `Moment` after every network call, then the rows of the batch.

    The rows are numbered from `start` on. A batch ends early, with masks left, once `enough` is true, unless its
    tokens may still change. `share` is (rank, world): only the batches numbered rank, rank + world, ... are drawn.
    """
    rank, world = share
    for first in range(start + rank * recipe.batch, start + len(rows), world * recipe.batch):
        some = list(rows[first - start : first - start + recipe.batch])
        ids = torch.arange(first, first + len(some), device=device)
        canvas = canvas_of(some, mask=mask, device=device)
        traces: list[list[Event]] = [[] for _ in ids]
        seconds, begun = 0.0, perf_counter()
        for step in method.fill(canvas, seed=recipe.seed, ids=ids):
            note_events(traces, step, before=canvas)
            canvas = step.canvas
            seconds += perf_counter() - begun
            yield Moment(first, step)
            begun = perf_counter()  # time of the caller does not count
            if method.process.settled and enough(canvas, some):
                break
        for number, tokens, trace in zip(ids.tolist(), canvas.tokens.tolist(), traces, strict=True):
            yield Drawn(number, tokens, tuple(trace), seconds)


def note_events(traces: list[list[Event]], step: Step, *, before: Canvas | None = None) -> None:
    """Append each row's new tokens to its trace; a row whose tokens were all hidden again starts a new trace.

    With the canvas before the step, tokens that were hidden again are events too.
    """
    length = step.canvas.tokens.shape[1]
    if before is not None:
        for row, position in (step.canvas.hidden & ~before.hidden).nonzero().tolist():
            traces[row].append(Event(step.call, position, step.canvas.mask, 0.0))
    for at, token, log_prob in zip(step.rows.tolist(), step.tokens.tolist(), step.log_probs.tolist(), strict=True):
        traces[at // length].append(Event(step.call, at % length, token, log_prob))
    blank = (step.canvas.hidden == ~step.canvas.frozen).all(1) & (~step.canvas.frozen).any(1)
    for number in blank.nonzero().squeeze(-1).tolist():
        traces[number].clear()
