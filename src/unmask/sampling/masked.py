"""Masked diffusion as a process: blanks become tokens in the order of a policy, in windows or on the whole canvas.

`ask` and `commit` are pure functions of a `Work`, so a server can answer the questions of many works, each with its
own policy, in one forward pass. Tokens without an alternative under a constraint take no call (`settle`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.rows import forbid, rows_where
from unmask.errors import UserError
from unmask.random import TOKEN, Dice, keys
from unmask.sampling.logits import LogitOptions, inverse_cdf
from unmask.sampling.policies.planned import FirstHitting
from unmask.sampling.policy import Memory, Policy, PolicyView
from unmask.sampling.process import PROCESSES, Ask, Committed, NetworkAnswer, Process, Step, run
from unmask.text.prompt.canvas import Canvas


class Span(NamedTuple):
    """The network sees start..stop; the blanks in first..last are filled."""

    start: int
    stop: int
    first: int
    last: int


@runtime_checkable
class Windows(Protocol):
    def spans(self, length: int) -> list[Span]:
        """The windows of a canvas, from left to right; together they fill every position once."""


@dataclass(frozen=True)
class Whole:
    """One window: the network sees everything, and any blank may be filled next."""

    def spans(self, length: int) -> list[Span]:
        return [Span(0, length, 0, length)]


@dataclass(frozen=True)
class Sliding:
    """Semi-autoregressive: `context` tokens at once, then `stride` more per window of `context` tokens.

    For text of any length, longer than the network was trained on. [MDLM §4.2]
    Plain form: tests/reference/samplers.py:semi_autoregressive.
    """

    context: int  # tokens the network sees
    stride: int  # tokens added by each window after the first

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= self.context:
            raise UserError(f"the stride must lie in 1..{self.context}, the context; saw {self.stride}.")

    @classmethod
    def usual(cls, context: int) -> "Sliding":
        """Half a window is new in each."""
        return cls(context, max(1, context // 2))

    def spans(self, length: int) -> list[Span]:
        ends = [min(self.context, length)]
        while ends[-1] < length:
            ends.append(min(ends[-1] + self.stride, length))
        firsts = [0, *ends[:-1]]
        return [Span(max(0, end - self.context), end, first, end) for first, end in zip(firsts, ends, strict=True)]


@dataclass(frozen=True)
class BlockWindows:
    """Blocks from left to right; the network sees the whole canvas, masks ahead included. [LLaDA]"""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"a block needs at least one token; saw {self.size}.")

    def spans(self, length: int) -> list[Span]:
        return [Span(0, length, first, min(first + self.size, length)) for first in range(0, length, self.size)]


@dataclass(frozen=True)
class Work:
    """Rows being filled: everything that the next network call depends on."""

    canvas: Canvas  # in its current state
    policy: Policy
    key: Int[Tensor, " b"]  # key of each row's random numbers
    spans: tuple[Span, ...]  # the windows still to fill; empty when all is done
    clock: Int[Tensor, " b"]  # network calls of each row in the first of these windows
    memory: Memory = ()  # of the policy
    options: LogitOptions = field(default_factory=LogitOptions)  # temperature, top-p, ...

    @property
    def done(self) -> bool:
        """Whether nothing is left to fill."""
        return not self.spans


def begin(
    canvas: Canvas,
    policy: Policy,
    *,
    seed: int = 0,
    ids: Int[Tensor, " b"] | None = None,
    windows: Windows | None = None,
    options: LogitOptions | None = None,
) -> Work:
    """A new work. The seed and the rows' `ids` (0, 1, 2, ... by default) determine all random numbers.

    A constraint that no filling of the canvas satisfies is refused here, before any network call. Tokens that need no
    call come at once.
    """
    tokens = canvas.tokens
    ids = torch.arange(len(tokens), device=tokens.device) if ids is None else ids
    spans = tuple((windows or Whole()).spans(tokens.shape[1]))
    work = Work(canvas, policy, keys(seed, ids), spans, torch.zeros_like(ids), options=options or LogitOptions())
    if work.options.constraint is not None:
        work.options.constraint.check(canvas)
    return settle(enter_window(work))[0]


def enter_window(work: Work) -> Work:
    """Go to the first window with something left to fill, and plan it."""
    hidden = work.canvas.hidden
    spans = work.spans
    while spans and not bool(hidden[:, spans[0].first : spans[0].last].any()):
        spans = spans[1:]
    if not spans:
        return replace(work, spans=())
    memory = work.policy.plan(seen_hidden(hidden, spans[0]), Dice(work.key, spans[0].start))
    return replace(work, spans=spans, clock=torch.zeros_like(work.clock), memory=memory)


def seen_hidden(hidden: Bool[Tensor, "b l"], span: Span) -> Bool[Tensor, "b w"]:
    """The positions that a window may fill, among those it sees."""
    if (span.start, span.stop) == (span.first, span.last):
        return hidden[:, span.start : span.stop]
    place = torch.arange(span.start, span.stop, device=hidden.device)
    return hidden[:, span.start : span.stop] & (place >= span.first) & (place < span.last)


def view_of(work: Work, among: Int[Tensor, " k"] | None = None) -> tuple[PolicyView, Int[Tensor, " live"]]:
    """What the policy sees, and the rows of the canvas it sees: with blanks left in this window, or `among` these."""
    span = work.spans[0]
    hidden, free = seen_hidden(work.canvas.hidden, span), seen_hidden(~work.canvas.frozen, span)
    live = hidden.any(1).nonzero().squeeze(-1) if among is None else among
    tokens = work.canvas.tokens[:, span.start : span.stop]
    if len(live) == len(tokens):
        return PolicyView(
            tokens, hidden, Dice(work.key, span.start), work.clock, work.memory, work.canvas.mask, free
        ), live
    dice, memory = Dice(work.key[live], span.start), tuple(m[live] for m in work.memory)
    return PolicyView(tokens[live], hidden[live], dice, work.clock[live], memory, work.canvas.mask, free[live]), live


def ask(work: Work, among: Int[Tensor, " k"] | None = None) -> Ask | None:
    """The next question, about unfinished rows only, `among` some of them; None when every row is filled."""
    if not work.spans:
        return None
    view, live = view_of(work, among)
    where, sigma = work.policy.wants(view)
    span, lengths = work.spans[0], work.canvas.lengths
    lengths = None if lengths is None else (lengths[live] - span.start).clamp(max=view.tokens.shape[1])
    frozen, spaced = (seen_rows(one, span, live) for one in (work.canvas.frozen, work.canvas.spaced))
    shown = work.policy.shown(view)
    return Ask(shown, sigma, rows_where(where), live, view, span.start, lengths, frozen, spaced)


def seen_rows(values: Tensor | None, span: Span, live: Int[Tensor, " live"]) -> Tensor | None:
    """What a window sees of the live rows."""
    if values is None:
        return None
    seen = values[:, span.start : span.stop]
    return seen if len(live) == len(values) else seen[live]


def commit(work: Work, asked: Ask, logits: Float[Tensor, "n v"]) -> tuple[Work, Committed]:
    """The work after the network's answer, and what was committed. `asked` is what `ask(work)` gave."""
    view, live, rows = asked.view, asked.live, asked.rows
    own, logits = logits, work.options.meaning(asked, logits)
    likely = logits if work.policy.takes_all else within(work, asked, rows, logits)
    chosen, memory = work.policy.choose(
        view,
        rows,
        own if work.policy.unshaped else likely,
        lambda: draw_tokens(view, rows, forbid(likely, view.mask), work.options),
    )
    if not (work.policy.takes_all or bool(chosen.all())):
        rows, logits = rows[chosen], logits[chosen]
    logits = forbid(logits, view.mask)
    tokens = drawn_within(work, asked, rows, work.policy.tilt(view, rows, logits))
    every = logits.log_softmax(-1)
    log_probs = every.gather(-1, tokens[:, None]).squeeze(-1)
    # Count a call only for rows that were asked: a row's random numbers must not depend on its batch.
    clock = work.clock + torch.zeros_like(work.clock).index_fill(0, live[asked.row], 1)
    first, at = set_tokens(replace(work, clock=clock), asked, rows, tokens, log_probs, memory)
    after, settled = settle(first)
    if not len(settled.rows):
        return after, Committed(at, tokens, log_probs, every)
    return after, Committed(
        torch.cat([at, settled.rows]),
        torch.cat([tokens, settled.tokens]),
        torch.cat([log_probs, settled.log_probs.to(log_probs)]),
        every,
    )


def set_tokens(
    work: Work,
    asked: Ask,
    rows: Int[Tensor, " n"],
    tokens: Int[Tensor, " n"],
    log_probs: Float[Tensor, " n"],
    memory: Memory,
) -> tuple[Work, Int[Tensor, " n"]]:
    """The work with tokens at flat positions of a question, and these as flat positions of the canvas."""
    length = work.canvas.tokens.shape[1]
    at = canvas_positions(rows, asked, length)
    after = work.canvas.tokens.flatten().index_copy(0, at, tokens)
    if work.policy.revises:
        again, memory = work.policy.revise(after_commit(asked.view, rows, tokens, memory), rows, log_probs)
        after = after.index_fill(0, canvas_positions(rows_where(again), asked, length), asked.view.mask)
    work = replace(
        work,
        canvas=work.canvas.with_tokens(after.view_as(work.canvas.tokens)),
        memory=tuple(update_memory(old, new, asked.live) for old, new in zip(work.memory, memory, strict=True)),
    )
    return enter_window_if_done(work), at


def settle(work: Work) -> tuple[Work, Committed]:
    """Commit tokens without an alternative while no network call is needed; their probability is 1.

    They come when it is their turn in the policy's order: the same rows with the same law as if the network had been
    asked. A policy that takes the most certain positions first takes them all at once.
    """
    policy, constraint, nothing = work.policy, work.options.constraint, work.key[:0]
    if constraint is None:
        return work, Committed(nothing, nothing, certain(nothing))
    rows, tokens = [nothing], [nothing]
    ways = None
    while (asked := ask(work)) is not None:
        if ways is None or policy.revises:  # such tokens do not change which fillings match
            ways = constraint.ways(work.canvas)
        sole = ways.sole(asked.live[asked.row], asked.position)
        turn = torch.zeros(len(asked.live), dtype=torch.bool, device=sole.device)
        turn = turn.index_fill(0, asked.row[sole >= 0], True)
        if not policy.surest_first:  # all that is wanted now must be certain
            turn = turn.index_fill(0, asked.row[sole < 0], False)
        if not bool(turn.any()):
            break
        sole = sole[turn[asked.row]]
        asked = ask(work, among=asked.live[turn])
        assert asked is not None
        known = asked.rows[sole >= 0]
        tokens.append(sole[sole >= 0])
        work, at = set_tokens(work, asked, known, tokens[-1], certain(tokens[-1]), asked.view.memory)
        rows.append(at)
    drawn_tokens = torch.cat(tokens)
    return work, Committed(torch.cat(rows), drawn_tokens, certain(drawn_tokens))


def certain(tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log 1 for each of these tokens."""
    return torch.zeros(len(tokens), device=tokens.device)


def after_commit(view: PolicyView, rows: Int[Tensor, " n"], tokens: Int[Tensor, " n"], memory: Memory) -> PolicyView:
    """What the policy sees after these tokens are committed."""
    shown = view.tokens.flatten().index_copy(0, rows, tokens).view_as(view.tokens)
    hidden = view.hidden.flatten().index_fill(0, rows, False).view_as(view.hidden)
    return replace(view, tokens=shown, hidden=hidden, memory=memory)


def within(work: Work, asked: Ask, rows: Int[Tensor, " n"], logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
    """The logits restricted by the constraint, each position by itself."""
    if work.options.constraint is None:
        return logits
    width = asked.tokens.shape[1]
    return work.options.constraint.prune(work.canvas, asked.live[rows // width], rows % width + asked.start, logits)


def drawn_within(work: Work, asked: Ask, rows: Int[Tensor, " n"], logits: Float[Tensor, "n v"]) -> Int[Tensor, " n"]:
    """A token for each of these flat positions; together they satisfy the constraint, if there is one."""
    view, options = asked.view, work.options
    if options.constraint is None or not len(rows):
        return draw_tokens(view, rows, logits, options)
    width = asked.tokens.shape[1]
    row, position = asked.live[rows // width], rows % width + asked.start
    return options.constraint.drawn(
        work.canvas, row, position, logits, lambda which, left: draw_tokens(view, rows[which], left, options)
    )


def draw_tokens(
    view: PolicyView, rows: Int[Tensor, " n"], logits: Float[Tensor, "n v"], options: LogitOptions
) -> Int[Tensor, " n"]:
    """A token for each of these flat positions."""
    width = view.tokens.shape[1]
    row = rows // width
    return inverse_cdf(options.sharpen(logits), view.dice.at(row, rows % width, view.clock[row], TOKEN))


def update_memory(old: Tensor, new: Tensor, live: Int[Tensor, " live"]) -> Tensor:
    """A policy's memory with the entries of the live rows replaced."""
    if len(live) == len(old):
        return new
    if old.shape[1:] != new.shape[1:]:  # the size of the vocabulary is known only now
        old = new.new_zeros(len(old), *new.shape[1:])
    return old.index_copy(0, live, new)


def canvas_positions(rows: Int[Tensor, " n"], asked: Ask, length: int) -> Int[Tensor, " n"]:
    """Flat positions of a question as flat positions of the whole canvas."""
    width = asked.tokens.shape[1]
    return asked.live[rows // width] * length + rows % width + asked.start


def enter_window_if_done(work: Work) -> Work:
    first, last = work.spans[0].first, work.spans[0].last
    return work if bool(work.canvas.hidden[:, first:last].any()) else enter_window(work)


class InWindows(Process):
    """A process of a policy, whose states hold the text and the windows that are still to fill."""

    policy: Any

    @property
    def law(self) -> str:
        law: str = self.policy.law
        return law

    def done(self, state: Any) -> bool:
        return not state.spans

    def canvas(self, state: Any) -> Canvas:
        canvas: Canvas = state.canvas
        return canvas


@PROCESSES.register("masked", "masked diffusion: blanks become tokens in the order of a policy")
@dataclass(frozen=True)
class Masked(InWindows):
    """Masked diffusion under a policy."""

    name: ClassVar[str] = "masked"
    needs: ClassVar[frozenset[str]] = frozenset({"masks"})
    policy: Policy = field(default_factory=FirstHitting)
    windows: Windows = field(default_factory=Whole)
    options: LogitOptions = field(default_factory=LogitOptions)

    @classmethod
    def of(cls, *, policy: Policy, options: LogitOptions, windows: Windows | None, model: Any) -> "Masked":
        return cls(policy, windows or Whole(), options)

    @property
    def scope(self) -> str:
        windows = self.windows
        if not isinstance(windows, Sliding):
            return ""
        return f", within windows of {windows.context} tokens, {windows.stride} new in each"

    @property
    def settled(self) -> bool:
        return not self.policy.revises

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> Work:
        return begin(canvas, self.policy, seed=seed, ids=ids, windows=self.windows, options=self.options)

    def ask(self, state: Work) -> Ask | None:
        return ask(state)

    def commit(self, state: Work, asked: Ask, answer: NetworkAnswer) -> tuple[Work, Committed]:
        return commit(state, asked, answer.logits)

    def remember(self, state: Work, asked: Ask, answer: NetworkAnswer, work: Work) -> Work:
        """The state with this work: nothing is remembered."""
        return work


class OverMasked(Process):
    """A process that asks and commits as masked diffusion does and reads in its own way: its states hold a `Work`."""

    @property
    def inner(self) -> Masked:
        """Masked diffusion, as it is followed here."""
        raise NotImplementedError

    @property
    def law(self) -> str:
        return self.inner.law

    @property
    def scope(self) -> str:
        return self.inner.scope

    @property
    def settled(self) -> bool:
        return self.inner.settled

    def done(self, state: Any) -> bool:
        return self.inner.done(state.work)

    def canvas(self, state: Any) -> Canvas:
        return state.work.canvas


def fill(
    network: Any,
    canvas: Canvas,
    policy: Policy | None = None,
    *,
    seed: int = 0,
    ids: Int[Tensor, " b"] | None = None,
    windows: Windows | None = None,
    options: LogitOptions | None = None,
) -> Iterator[Step]:
    """Fill the masks of a canvas; yields after every network call, so the caller may show, stream or stop.

        for step in fill(model.network, blank(4, 128, mask=model.mask), seed=0):
            print(tokenizer.decode(step.canvas.tokens[0]))

    policy   where to commit at each call: `FirstHitting()` by default, which is exact; `policy.law` names the
             distribution of the samples
    seed     seed and row number determine a row, whatever else is in the batch
    ids      the rows' numbers, 0, 1, 2, ... by default: rows 32..63 of a long run are `ids=torch.arange(32, 64)`
    windows  `Sliding(context, stride)` for canvases longer than the network can see, `BlockWindows(size)` for blocks
    options  temperature, top-k, top-p, banned tokens, a hook on the logits

    Frozen tokens never change and no mask is left. A canvas without blanks takes no call. A canvas with rows of
    different lengths needs a network that accepts `lengths=`.
    """
    process = Masked(policy or FirstHitting(), windows or Whole(), options or LogitOptions())
    return run(process, network, canvas, seed=seed, ids=ids)
