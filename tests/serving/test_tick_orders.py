"""Requests in different orders, in one and two streams, and drafted ones share the call of a tick."""

import pytest
import torch
from models import network

from unmask.sampling.any_order import AnyOrderProcess
from unmask.sampling.autoregressive import AutoregressiveProcess
from unmask.sampling.drafted import Drafted, Drafter, NextBlanks
from unmask.sampling.one_stream import OneStreamProcess
from unmask.sampling.policy import policy_of
from unmask.sampling.process import run
from unmask.serving.batch import Job
from unmask.serving.tick import EngineTurn, advance
from unmask.text.prompt.canvas import of_rows

VOCAB, MASK = 30, 29
SAMPLERS = ("first-hitting", "left-to-right", "confidence", "first-hitting")
ROWS = [[3, 1, *[MASK] * 5], [5, *[MASK] * 3, 2, MASK], [1, MASK, 3, MASK, 4], [7, *[MASK] * 6]]


def canvases():
    return [of_rows([row] * (1 + i % 2), mask=MASK) for i, row in enumerate(ROWS)]


def processes_of(net, kind):
    for sampler in SAMPLERS:
        policy = policy_of(sampler)
        yield AnyOrderProcess(policy) if kind == "two streams" else OneStreamProcess(net.spec, policy)


class Counted:
    """A network that notes its calls."""

    def __init__(self, net):
        self.net, self.calls, self.spec, self.head = net, 0, net.spec, net.head

    def run(self, p):
        self.calls += 1
        return self.net.run(p)


def served(net, made, starts):
    """The texts of all requests, which advance together."""
    counted = Counted(net)
    jobs = {i: Job(one, one.begin(canvas, seed=i)) for i, (one, canvas) in enumerate(zip(made, starts, strict=True))}
    ticks = 0
    while going := {i: job for i, job in jobs.items() if not job.done}:
        turns = advance(counted, list(going.values()), drafts=[False] * len(going), vocab=VOCAB)
        assert all(isinstance(turn, EngineTurn) for turn in turns), turns
        jobs |= {i: turn.work for i, turn in zip(going, turns, strict=True)}
        ticks += 1
    assert counted.calls == ticks, "one call in a tick"
    return [job.canvas.tokens for job in jobs.values()]


@pytest.mark.parametrize("kind", ["one stream", "two streams"])
def test_requests_of_different_orders_share_a_call_and_become_what_they_would_alone(kind):
    net = network(VOCAB).freeze()
    made = list(processes_of(net, kind))
    for i, tokens in enumerate(served(net, made, canvases())):
        *_, alone = run(made[i], net, canvases()[i], seed=i)
        assert torch.equal(tokens, alone.canvas.tokens)


def test_drafted_requests_share_a_call_and_become_what_the_autoregressive_model_writes():
    net, other = network(VOCAB, causal=True, reads_before=True).freeze(), network(VOCAB).freeze()
    own = AutoregressiveProcess(cached=True)
    made = [Drafted(own.inner, Drafter(AnyOrderProcess(NextBlanks(count=k)), other)) for k in (1, 3)]
    starts = [of_rows([[1, 2, *[MASK] * 9]], mask=MASK), of_rows([[3, *[MASK] * 5], [4, *[MASK] * 5]], mask=MASK)]
    for i, tokens in enumerate(served(net, made, starts)):
        *_, alone = run(own, net, starts[i], seed=i)
        assert torch.equal(tokens, alone.canvas.tokens)
