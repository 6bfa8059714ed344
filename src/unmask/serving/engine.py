"""The engine: all live requests advance together, one network call per tick.

Requests join and leave on the event loop, between ticks; all arithmetic runs in one worker thread, so nothing needs
a lock. A new request gets a `Ticket` and reads its turns. One whose reader falls behind waits until it has read; one
whose reader leaves is dropped before the next tick.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from unmask.errors import UserError
from unmask.model.backbone import Reader
from unmask.serving.batch import Job, passes
from unmask.serving.limits import Limits
from unmask.serving.log import Report
from unmask.serving.metrics import Metrics
from unmask.serving.refusal import Refusal, busy, closing, late, server_failure, stuck
from unmask.serving.tick import EngineTurn, advance

Made = TypeVar("Made")

THREADS = "unmask engine"  # the beginning of the names of its threads
AHEAD = 8  # turns that a reader may fall behind: one of 32 texts with drafts has half a megabyte
PATIENCE = 2.0  # seconds that a closing engine waits for its threads


@dataclass(eq=False)
class Ticket:
    """A work's place in the engine."""

    work: Job
    network: Reader
    draft: bool
    deadline: float
    wake: asyncio.Event  # of the engine
    top: int = 0  # alternatives to each token that its turns have
    turns: "asyncio.Queue[EngineTurn | Exception | None]" = field(default_factory=asyncio.Queue)
    left: bool = False

    @property
    def done(self) -> bool:
        return self.work.done

    @property
    def rows(self) -> int:
        """Rows of the network's batch that it takes in a call."""
        return len(self.work.canvas.tokens) * passes(self.work)

    @property
    def width(self) -> int:
        return self.work.canvas.tokens.shape[1]

    @property
    def behind(self) -> bool:
        """Whether the reader must catch up before the next turn."""
        return self.turns.qsize() >= AHEAD

    def leave(self) -> None:
        """Leave the engine; the next tick runs without it."""
        self.left = True
        self.wake.set()

    async def __aiter__(self) -> AsyncIterator[EngineTurn]:
        try:
            while (turn := await self.turns.get()) is not None:
                self.wake.set()
                if isinstance(turn, Exception):
                    raise turn
                yield turn
        finally:
            self.leave()


class Engine:
    """Call `start` in a running event loop, and `close` at the end."""

    def __init__(self, network: Reader, *, vocab: int, limits: Limits, metrics: Metrics, report: Report) -> None:
        self.network, self.vocab, self.limits = network, vocab, limits
        self.metrics, self.report = metrics, report
        self.live: list[Ticket] = []
        self.waiting: deque[Ticket] = deque()
        self.entering = 0  # requests being prepared or scored
        self.open = False
        self.draining = False  # soon closed: balancers should send new requests elsewhere
        self.moved = monotonic()  # when a thread last ended something, or began it after a rest
        self.wake = asyncio.Event()
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=THREADS)
        self.side = ThreadPoolExecutor(max_workers=4, thread_name_prefix=f"{THREADS} side")
        self.running: set[Future[Any]] = set()  # what the threads have to do
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.open = True
        self.task = asyncio.get_running_loop().create_task(self.run())

    async def close(self) -> None:
        """Refuse new requests, end waiting and running ones with an error, and stop after the current call.

        Work that does not end soon is left behind in its thread.
        """
        self.open = False
        for ticket in [*self.live, *self.waiting]:
            ticket.turns.put_nowait(closing())
            ticket.leave()
        self.wake.set()
        self.thread.shutdown(wait=False, cancel_futures=True)
        self.side.shutdown(wait=False, cancel_futures=True)
        end = monotonic() + PATIENCE
        while self.running and monotonic() < end:
            await asyncio.sleep(0.01)
        if self.task is not None:
            if self.running:
                self.task.cancel()
            await asyncio.wait({self.task})

    async def enter(
        self,
        make: Callable[[], Job],
        *,
        network: Reader | None = None,
        draft: bool = False,
        top: int = 0,
        again: bool = False,
    ) -> Ticket:
        """A ticket for the work that `make` builds in the engine's thread; refused when too many requests wait.

        `network`: that of an adapter; None: the engine's own.
        """
        deadline, made = monotonic() + self.limits.seconds, await self.between(make, again=again)
        ticket = Ticket(made, network or self.network, draft, deadline, self.wake, top)
        if ticket.rows * ticket.width > self.limits.positions:
            twice = ", each taken twice for guidance" if passes(ticket.work) > 1 else ""
            raise UserError(
                f"the request has {len(ticket.work.canvas.tokens)} texts of up to {ticket.width} tokens{twice}; a "
                f"forward pass takes {self.limits.positions} tokens at most. Ask for fewer or shorter texts."
            )
        if ticket.done:
            ticket.turns.put_nowait(None)  # nothing to fill
        else:
            self.waiting.append(ticket)
            self.wake.set()
        return ticket

    async def between(self, make: Callable[[], Made], *, again: bool = False, beside: bool = False) -> Made:
        """Run `make` in the engine's thread, between two ticks; `again` for a request that was admitted before.

        `beside`: in another thread, during ticks, for long work that does not call the network.
        """
        if not self.open:
            raise closing()
        if not again:
            self.check_queue()
        self.entering += 1
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self.apart(make, self.side if beside else self.thread)
        except TimeoutError:
            raise late(self.limits.seconds) from None
        finally:
            self.entering -= 1

    async def apart(self, make: Callable[[], Made], thread: ThreadPoolExecutor) -> Made:
        """Run `make` in a thread. If the request is cancelled first, what has not begun never does."""
        self.moved = self.moved if self.running else monotonic()
        future = thread.submit(make)
        self.running.add(future)
        future.add_done_callback(self.note_end)
        return await asyncio.wrap_future(future)

    def note_end(self, future: Future[Any]) -> None:
        self.running.discard(future)
        self.moved = monotonic()

    def check_alive(self) -> None:
        """Refuse if the engine has ended, or if nothing moves for longer than a request may take."""
        still = bool(self.running) and monotonic() - self.moved > self.limits.seconds
        if still or (self.open and (self.task is None or self.task.done())):
            raise stuck()

    def check_ready(self) -> None:
        """Refuse if another replica should get the next request."""
        self.check_alive()
        if self.draining or not self.open:
            raise closing()
        self.check_queue()

    def check_queue(self) -> None:
        if self.entering + len(self.waiting) >= self.limits.queue + self.idle:
            raise busy(self.patience())

    @property
    def idle(self) -> int:
        """1 while nothing runs, so that the next request need not wait; else 0."""
        return int(not self.live and not self.waiting)

    def patience(self) -> int:
        """Seconds until a refused request may try again: the recent duration of a request."""
        return max(1, min(60, round(self.metrics.recent)))

    async def run(self) -> None:
        """Tick until closed."""
        while self.open or self.live or self.waiting:
            self.wake.clear()
            self.sweep()
            self.admit()
            self.metrics.live.set(len(self.live))
            self.metrics.waiting.set(len(self.waiting))
            if self.live:
                await self.tick()
            elif self.open:
                await self.sleep()

    async def sleep(self) -> None:
        """Until something changes, or a request whose reader is behind may be late."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1 if self.waiting else None):
                await self.wake.wait()

    def sweep(self) -> None:
        """Remove requests that have left or exceeded their time."""
        now = monotonic()
        for ticket in [*self.live, *self.waiting]:
            if not ticket.left and now > ticket.deadline:
                ticket.turns.put_nowait(late(self.limits.seconds))
                ticket.leave()
        self.live = [ticket for ticket in self.live if not ticket.left]
        self.waiting = deque(ticket for ticket in self.waiting if not ticket.left)

    def admit(self) -> None:
        """Admit waiting requests, first come first served, within the limit of positions per call.

        One whose reader is behind gives its place to others, and waits at the front.
        """
        self.waiting.extendleft(ticket for ticket in reversed(self.live) if ticket.behind)
        self.live = [ticket for ticket in self.live if not ticket.behind]
        for ticket in [ticket for ticket in self.waiting if not ticket.behind]:
            crowd = [*self.live, ticket]
            size = sum(one.rows for one in crowd) * max(one.width for one in crowd)
            if self.live and size > self.limits.positions:
                return
            self.waiting.remove(ticket)
            self.live.append(ticket)

    async def tick(self) -> None:
        """One call of each network that a request waits for: there are several only where adapters are served."""
        tickets, began = list(self.live), monotonic()
        for network in {id(ticket.network): ticket.network for ticket in tickets}.values():
            await self.call(network, [ticket for ticket in tickets if ticket.network is network])
        self.metrics.tick(seconds=monotonic() - began, works=len(tickets))

    async def call(self, network: Reader, tickets: list[Ticket]) -> None:
        works = [ticket.work for ticket in tickets]
        drafts, tops = [ticket.draft for ticket in tickets], [ticket.top for ticket in tickets]
        turns: list[EngineTurn | Exception]
        try:
            turns = await self.apart(
                lambda: advance(
                    network, works, drafts=drafts, tops=tops, vocab=self.vocab, counted=self.metrics.passed
                ),
                self.thread,
            )
        except Exception as error:  # the network itself failed, most likely out of memory
            self.report(error)
            turns = [server_failure()] * len(tickets)
        for ticket, turn in zip(tickets, turns, strict=True):
            self.deliver(ticket, turn)

    def deliver(self, ticket: Ticket, turn: EngineTurn | Exception) -> None:
        if isinstance(turn, Exception):
            if not isinstance(turn, UserError | Refusal):
                self.report(turn)
                turn = server_failure()
            ticket.turns.put_nowait(turn)
            ticket.leave()
            return
        ticket.work = turn.work
        ticket.turns.put_nowait(turn)
        self.metrics.tokens.inc(len(turn.brought.ids))
        if ticket.done:
            ticket.turns.put_nowait(None)
            ticket.leave()
