"""Rows drawn a batch at a time, each with its trace: which token came at which network call."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.sampling.policy import Revising
from unmask.sampling.process import Step
from unmask.sampling.recipe import Method, Recipe
from unmask.text.prompt.canvas import Canvas, of_tokens


@dataclass(frozen=True)
class Event:
    """One token coming into a row."""

    call: int  # the network call that brought it: 1, 2, 3, ...
    position: int
    token: int
    log_prob: float  # under the model at that moment, in nats, before temperature and truncation


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
    trace: tuple[Event, ...]  # in the order they came
    seconds: float  # that its batch took

    @property
    def calls(self) -> int:
        """Network calls until its last token, those in which it waited for its batch included."""
        return max((event.call for event in self.trace), default=0)


def draw_rows(
    method: Method,
    start: Int[Tensor, " l"],
    *,
    n: int,
    recipe: Recipe,
    mask: int,
    enough: Callable[[Canvas], bool] = lambda canvas: False,
    share: tuple[int, int] = (0, 1),
    spaced: Bool[Tensor, " l"] | None = None,
) -> Iterator[Moment | Drawn]:
    """Fill the masks of `start` in `n` ways: a `Moment` after every network call, then the rows of the batch.

    A batch of which one has `enough` ends early, with masks left, unless its tokens may still change. `share` is
    (rank, world): of the batches, those numbered rank, rank + world, ... are drawn. `spaced` says where a token must
    begin with a space.
    """
    if n < 1:
        raise UserError(f"the number of samples must be at least 1; saw {n}.")
    rank, world = share
    settled = not isinstance(method.policy, Revising)
    for first in range(rank * recipe.batch, n, world * recipe.batch):
        ids = torch.arange(first, min(first + recipe.batch, n), device=start.device)
        blank = of_tokens(start.repeat(len(ids), 1), mask=mask)
        if spaced is not None and bool(spaced.any()):
            blank = replace(blank, spaced=spaced.repeat(len(ids), 1))
        done: dict[int, Drawn] = {}
        calls, seconds = 0, 0.0
        if method.kept is not None:
            method.kept.check(blank)
        for attempt in range(method.tries):
            canvas, begun = blank, perf_counter()
            traces: list[list[Event]] = [[] for _ in ids]
            for step in method.fill(canvas, seed=recipe.seed + (attempt << 40), ids=ids):
                canvas = step.canvas
                step = replace(step, call=calls + step.call)
                record(traces, step)
                seconds += perf_counter() - begun
                yield Moment(first, step)
                begun = perf_counter()  # what the caller does meanwhile does not count
                if settled and method.kept is None and enough(canvas):
                    break
            calls = max((trace[-1].call for trace in traces if trace), default=calls)
            match = [True] * len(ids) if method.kept is None else method.kept.matches(canvas).tolist()
            for row, tokens, trace, fits in zip(ids.tolist(), canvas.tokens.tolist(), traces, match, strict=True):
                if fits and row not in done:
                    done[row] = Drawn(row, tokens, tuple(trace), seconds)
            if len(done) == len(ids):
                break
        else:
            raise UserError(
                f"{len(done)} of {len(ids)} samples matched in {method.tries} tries: the pattern is too unlikely for "
                "rejection. Allow more tries, or leave reject out: the tokens are then restricted as they are drawn."
            )
        yield from (replace(done[row], seconds=seconds) for row in ids.tolist())


def record(traces: list[list[Event]], step: Step) -> None:
    """Note each row's new tokens."""
    length = step.canvas.tokens.shape[1]
    for at, token, log_prob in zip(step.rows.tolist(), step.tokens.tolist(), step.log_probs.tolist(), strict=True):
        traces[at // length].append(Event(step.call, at % length, token, log_prob))
