"""Requests that fill blocks share the call of a tick, each with its own cache, which goes when they go."""

import asyncio
import gc
import weakref

import httpx
import pytest
import torch
from models import network, saved
from servers import serving

import unmask
from unmask.diffusion.block import BlockDiffusion
from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.sampling.blockwise import Blockwise
from unmask.sampling.logits import LogitOptions
from unmask.sampling.policy import policy_of
from unmask.sampling.process import run
from unmask.serving.batch import Job
from unmask.serving.engine import Engine
from unmask.serving.limits import Limits
from unmask.serving.log import reporter
from unmask.serving.metrics import Metrics
from unmask.serving.tick import EngineTurn, advance
from unmask.text.prompt.canvas import of_rows

pytestmark = pytest.mark.slow

VOCAB, MASK = 30, 29


class Counted:
    """A network that notes the block of every row in each of its calls."""

    def __init__(self, net):
        self.net, self.calls, self.spec, self.head = net, [], net.spec, net.head

    def run(self, p):
        parts = getattr(p.sees, "parts", (p,))
        self.calls.append([int(part.positions.reshape(-1, part.x.shape[1])[0, part.keep]) for part in parts])
        return self.net.run(p)


def process(net, sampler="first-hitting", **shape):
    return Blockwise(4, 16, net.spec.before, policy_of(sampler), LogitOptions(**shape))


def canvases():
    rows = [[3, 1, *[MASK] * 6], [*[2] * 9, *[MASK] * 10], [MASK] * 5, [1, MASK, 3, MASK, 4, 5, 6, 7, 8, MASK]]
    return [of_rows([row] * (1 + i % 2), mask=MASK) for i, row in enumerate(rows)]


def begun(net, i, sampler="first-hitting"):
    chosen = process(net, sampler)
    return Job(chosen, chosen.begin(canvases()[i], seed=i))


def test_requests_at_different_blocks_share_a_call_and_become_what_they_would_alone():
    net = Counted(network(VOCAB, reads_before=True).freeze())
    samplers = ["first-hitting", "entropy", "threshold", "first-hitting"]
    live = {i: begun(net.net, i, samplers[i]) for i in range(4)}
    ticks = 0
    while going := {i: job for i, job in live.items() if not job.done}:
        turns = advance(net, list(going.values()), drafts=[False] * len(going), vocab=VOCAB)
        assert all(isinstance(turn, EngineTurn) for turn in turns)
        live |= {i: turn.work for i, turn in zip(going, turns, strict=True)}
        ticks += 1
        assert len(net.calls) == ticks, "one call in a tick"
    assert any(len(set(call)) > 1 for call in net.calls), "of rows at different blocks"
    for i, job in live.items():
        *_, alone = run(process(net.net, samplers[i]), net.net, canvases()[i], seed=i)
        assert torch.equal(job.canvas.tokens, alone.canvas.tokens)


def test_an_error_of_one_request_does_not_stop_the_others():
    net = network(VOCAB, reads_before=True).freeze()

    def failing(ask, logits):
        raise UserError("not this one")

    bad = process(net, hook=failing)
    jobs = [begun(net, 0), Job(bad, bad.begin(canvases()[2], seed=0)), begun(net, 1)]
    turns = advance(net, jobs, drafts=[False] * 3, vocab=VOCAB)
    assert [type(turn) for turn in turns] == [EngineTurn, UserError, EngineTurn]


def test_a_request_that_leaves_takes_its_cache_along():
    net = network(VOCAB, reads_before=True).freeze()

    async def inside():
        engine = Engine(net, vocab=VOCAB, limits=Limits(), metrics=Metrics(), report=reporter())
        engine.start()
        try:
            ticket = await engine.enter(lambda: begun(net, 1))
            turns = aiter(ticket)
            turn = await anext(turns)
            cache = weakref.ref(turn.work.state.memories[0].memory.layers[0][0])
            assert cache() is not None
            await turns.aclose()
            del ticket, turns, turn
            other = await engine.enter(lambda: begun(net, 2))
            async for _ in other:
                pass
            gc.collect()
            assert cache() is None
            assert not engine.live
        finally:
            await asyncio.wait_for(engine.close(), 10)

    asyncio.run(inside())


def test_a_block_model_is_served_as_it_is_drawn(tmp_path):
    model = load(saved(tmp_path / "m", objective=BlockDiffusion(size=4), reads_before=True))
    with serving(model, limits=Limits(tokens=80)) as address:
        body = {"prompt": "The quick", "max_tokens": 60, "seed": 7, "n": 2, "stop": None}
        told = httpx.post(f"{address}/v1/completions", json=body, timeout=120).json()
        blanks = {"text": "The [3] fox [4] dog.", "seed": 3}
        filled = httpx.post(f"{address}/v1/infill", json=blanks, timeout=120).json()
        scored = httpx.post(f"{address}/v1/score", json={"texts": ["The quick brown fox"]}, timeout=120).json()
    drawn = unmask.sample(model, prompt="The quick", length=69, seed=7, n=2)
    assert [one["text"] for one in told["choices"]] == [one.text[9:] for one in drawn]
    assert told["law"] == drawn[0].law
    assert filled["choices"][0]["text"] == unmask.infill(model, "The [3] fox [4] dog.", seed=3, passes=4)[0].text
    assert scored["data"][0]["nats"] > 0
