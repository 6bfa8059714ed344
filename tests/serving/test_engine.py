"""The engine: who comes, who goes, and what each gets."""

import asyncio
import threading
from functools import partial

import pytest
import torch
from models import network
from slow import Slow

from unmask.model.passes.whole import logits_at
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Masked, begin, fill
from unmask.sampling.policy import policy_of
from unmask.serving.batch import Job
from unmask.serving.engine import AHEAD, Engine
from unmask.serving.limits import Limits
from unmask.serving.log import reporter
from unmask.serving.metrics import Metrics
from unmask.serving.refusal import Refusal
from unmask.text.prompt.canvas import blank

VOCAB, MASK = 30, 29


def work(length=6, *, rows=1, seed=0, sampler="first-hitting"):
    return job(begin(blank(rows, length, mask=MASK), policy_of(sampler), seed=seed))


def job(state):
    return Job(Masked(state.policy, options=state.options), state)


class Waiting:
    """A small network that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.network = network(VOCAB).freeze()
        self.spec, self.head = self.network.spec, self.network.head
        self.slow = Slow(self.network.run, seconds=seconds)
        self.rows = self.slow.rows

    def run(self, p):
        return self.slow(p)


def with_engine(test, *, seconds=0.0, net=None, limits=None, **bounds):
    """Run `test(engine, network)` in an event loop with a started engine whose calls take so many seconds."""
    net = net or Waiting(seconds)

    async def inside():
        engine = Engine(net, vocab=VOCAB, limits=limits or Limits(**bounds), metrics=Metrics(), report=reporter())
        engine.start()
        try:
            return await test(engine, net)
        finally:
            await asyncio.wait_for(engine.close(), 10)

    return asyncio.run(inside())


async def tokens(ticket):
    async for turn in ticket:
        last = turn
    return last.work.canvas.tokens


def test_requests_that_arrive_at_different_times_share_calls_and_get_what_they_would_get_alone():
    async def test(engine, net):
        jobs = [(5 + i, 1 + i % 3, i, ("first-hitting", "entropy")[i % 2]) for i in range(8)]

        async def one(length, rows, seed, sampler):
            await asyncio.sleep(0.01 * seed)
            ticket = await engine.enter(lambda: work(length, rows=rows, seed=seed, sampler=sampler))
            return await tokens(ticket)

        found = await asyncio.gather(*(one(*job) for job in jobs))
        for (length, rows, seed, sampler), got in zip(jobs, found, strict=True):
            *_, last = fill(
                partial(logits_at, net.network), blank(rows, length, mask=MASK), policy_of(sampler), seed=seed
            )
            assert torch.equal(got, last.canvas.tokens)
        return net.rows

    calls = with_engine(test, seconds=0.02)
    assert max(calls) >= 8  # several requests in one call
    assert len(calls) < sum(5 + i for i in range(8)) / 2


def test_whoever_leaves_is_in_no_further_call():
    async def test(engine, net):
        stays = await engine.enter(lambda: work(20))
        leaves = await engine.enter(lambda: work(20, rows=3))
        async for _ in leaves:
            if len(net.rows) >= 4:
                break  # as a client that goes away
        await tokens(stays)
        return net.rows

    rows = with_engine(test, seconds=0.01)
    last_with_it = max(i for i, count in enumerate(rows) if count == 4)
    assert last_with_it <= 6
    assert len(rows) >= 20


def test_a_request_whose_reader_falls_behind_waits_for_it_and_the_others_go_on():
    async def test(engine, net):
        behind = await engine.enter(lambda: work(20, rows=3, seed=1))
        while len(net.rows) < AHEAD:
            await asyncio.sleep(0.001)
        await tokens(await engine.enter(lambda: work(5)))
        assert behind.turns.qsize() == AHEAD
        assert len(engine.waiting) == 1
        got = await tokens(behind)
        *_, last = fill(partial(logits_at, net.network), blank(3, 20, mask=MASK), policy_of("first-hitting"), seed=1)
        assert torch.equal(got, last.canvas.tokens)
        return net.rows

    rows = with_engine(test)
    assert rows.count(1) == 5
    assert rows.count(3) == 20


def test_a_request_whose_reader_never_comes_back_is_late_even_when_nothing_else_happens():
    async def test(engine, net):
        behind = await engine.enter(lambda: work(40))
        while engine.live or not behind.behind:
            await asyncio.sleep(0.001)
        behind.deadline = 0
        async with asyncio.timeout(60):
            while engine.waiting:
                await asyncio.sleep(0.01)
        with pytest.raises(Refusal) as refused:
            await tokens(behind)
        return refused.value.status

    assert with_engine(test) == 504


@pytest.mark.slow
def test_an_engine_closes_though_a_thread_never_ends():
    held = threading.Event()

    async def test(engine, net):
        stuck = asyncio.create_task(engine.between(held.wait, beside=True))
        never = [asyncio.create_task(engine.between(held.wait, beside=True)) for _ in range(4)]
        while not engine.running:
            await asyncio.sleep(0.001)
        await asyncio.wait_for(engine.close(), 30)
        held.set()
        await asyncio.wait([stuck, *never])
        return never[-1].cancelled()

    assert with_engine(test)


def test_work_that_is_cancelled_before_it_begins_never_does():
    held, done = threading.Event(), []

    async def test(engine, net):
        first = asyncio.create_task(engine.between(held.wait))
        second = asyncio.create_task(engine.between(lambda: done.append(1)))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.wait([second])
        held.set()
        await first
        await engine.between(lambda: None)

    with_engine(test)
    assert not done


def test_a_waiting_request_that_leaves_is_never_begun():
    async def test(engine, net):
        first = await engine.enter(lambda: work(10))
        second = await engine.enter(lambda: work(10, rows=4))
        second.leave()
        await tokens(first)
        return net.rows

    assert set(with_engine(test, seconds=0.01, positions=40)) == {1}


def test_one_more_than_the_queue_holds_is_refused_with_a_time_to_come_back():
    async def test(engine, net):
        tickets = [await engine.enter(lambda: work(10))]
        for _ in range(2):
            tickets.append(await engine.enter(lambda: work(10, rows=4)))
        with pytest.raises(Refusal) as refused:
            await engine.enter(lambda: work(10))
        found = [await tokens(ticket) for ticket in tickets]
        assert len(found) == 3
        return refused.value

    refusal = with_engine(test, seconds=0.01, queue=2, positions=40)
    assert refusal.status == 429
    assert int(refusal.headers["Retry-After"]) >= 1


def test_no_call_shows_the_network_more_positions_than_the_limit():
    async def test(engine, net):
        tickets = [await engine.enter(lambda i=i: work(4 + i, rows=2)) for i in range(6)]
        await asyncio.gather(*map(tokens, tickets))

    sizes = []

    class Measured(Waiting):
        def run(self, p):
            sizes.append(p.x.numel())
            return super().run(p)

    with_engine(test, net=Measured(0.005), positions=50)
    assert max(sizes) <= 50
    assert max(sizes) > 20


def test_a_request_larger_than_a_call_is_refused():
    async def test(engine, net):
        with pytest.raises(ValueError, match="takes 30 tokens at most"):
            await engine.enter(lambda: work(8, rows=4))

    with_engine(test, positions=30)


def test_a_request_that_takes_too_long_ends_with_an_error_and_the_others_go_on():
    async def test(engine, net):
        slow = await engine.enter(lambda: work(40))
        with pytest.raises(Refusal) as refused:
            await tokens(slow)
        quick = await engine.enter(lambda: work(2))
        quick.deadline += 600  # on a busy machine its two calls may take longer, too
        quick = await tokens(quick)
        assert not bool((quick == MASK).any())
        return refused.value.status

    assert with_engine(test, seconds=0.02, limits=Limits(seconds=0.2)) == 504


def test_closing_ends_what_runs_and_waits_and_refuses_what_comes():
    async def test(engine, net):
        running, waiting = [await engine.enter(lambda: work(30, rows=2)) for _ in range(2)]
        ends = asyncio.gather(tokens(running), tokens(waiting), return_exceptions=True)
        await asyncio.sleep(0.05)
        await asyncio.wait_for(engine.close(), 120)
        found = await asyncio.wait_for(ends, 120)
        with pytest.raises(Refusal):
            await engine.enter(lambda: work(3))
        return [error.status for error in found]

    assert with_engine(test, seconds=0.02, positions=60) == [503, 503]


def test_a_network_that_fails_once_ends_only_the_requests_of_that_call():
    class Breaking(Waiting):
        def run(self, p):
            if len(self.rows) == 2:
                self.rows.append(0)
                raise MemoryError("secret")
            return super().run(p)

    async def test(engine, net):
        with pytest.raises(Refusal) as refused:
            await tokens(await engine.enter(lambda: work(9)))
        assert refused.value.status == 500
        assert "secret" not in str(refused.value.body())
        return await tokens(await engine.enter(lambda: work(9)))

    assert not bool((with_engine(test, net=Breaking(0.0)) == MASK).any())


def test_a_request_that_breaks_something_inside_is_not_told_what():
    def broken(asked, logits):
        raise KeyError("secret")

    async def test(engine, net):
        made = job(begin(blank(1, 4, mask=MASK), policy_of("first-hitting"), options=LogitOptions(hook=broken)))
        with pytest.raises(Refusal) as refused:
            await tokens(await engine.enter(lambda: made))
        return refused.value

    refusal = with_engine(test)
    assert refusal.status == 500
    assert "secret" not in str(refusal.body())


def test_a_work_with_nothing_to_fill_is_done_at_once():
    async def test(engine, net):
        full = blank(1, 3, mask=MASK).with_tokens(torch.ones(1, 3, dtype=torch.long))
        ticket = await engine.enter(lambda: job(begin(full, policy_of("first-hitting"))))
        return [turn async for turn in ticket]

    assert with_engine(test) == []
