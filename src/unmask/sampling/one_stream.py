"""Any-order generation in one stream: a token is read with the place of the next one.

A call reads the tokens that were committed by the last one, each aimed at the next in the order, and the last one at
the first blank that the policy asks for. Further blanks are asked by reading the last token again for each. If the
policy then takes another blank first, the next call reads that token once more, with the aim that it should have had.
So the order in which tokens were read is the one in which they were drawn, as in training.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.model import Model
from unmask.model.passes.aimed import aim_at, check_aimed
from unmask.model.passing import Empty, Memory, Pass, Rule
from unmask.sampling.any_order import UNREAD, AnyOrderProcess, OrderedWork, Readings, readings
from unmask.sampling.kept import Kept, read_together
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Masked, OverMasked, Whole, Windows, Work
from unmask.sampling.policies.planned import FirstHitting
from unmask.sampling.policy import Policy
from unmask.sampling.process import PROCESSES, Ask, Committed, NetworkAnswer
from unmask.text.prompt.canvas import Canvas


@dataclass(frozen=True)
class ReadingOrder:
    """The tokens of a row in the order of reading, from where each looks, and how many need not be read again."""

    places: Int[Tensor, " k"]
    aims: Int[Tensor, " k"]
    read: int


@PROCESSES.register("one-stream", "any-order networks of one stream: each token is read with the place of the next")
@dataclass(frozen=True)
class OneStreamProcess(OverMasked):
    """Any-order generation under a policy, in one stream."""

    name: ClassVar[str] = "one-stream"
    needs: ClassVar[frozenset[str]] = frozenset({"masks", "orders", "one stream"})

    spec: Spec
    policy: Policy = field(default_factory=FirstHitting)
    windows: Windows = field(default_factory=Whole)
    options: LogitOptions = field(default_factory=LogitOptions)
    cached: bool = True  # False: read everything again in each call

    @classmethod
    def of(
        cls, *, policy: Policy, options: LogitOptions, windows: Windows | None, model: Model
    ) -> "OneStreamProcess":
        check_aimed(model.spec)
        return cls(model.spec, policy, windows or Whole(), options)

    @property
    def ordered(self) -> AnyOrderProcess:
        return AnyOrderProcess(self.policy, self.windows, self.options, self.cached)

    @cached_property
    def inner(self) -> Masked:
        return Masked(self.policy, self.windows, self.options)

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> OrderedWork:
        begun = self.ordered.begin(canvas, seed=seed, ids=ids)
        return replace(begun, aims=torch.full_like(canvas.tokens, UNREAD))

    def ask(self, state: OrderedWork) -> Ask | None:
        asked = self.inner.ask(state.work)
        if asked is None:
            return None
        told, passes, kept = readings(state, asked), [], []
        for i, blanks in enumerate(blanks_of(asked)):
            own = self.reading(state, told, i, blanks)
            kept.append(state.memories[int(asked.live[i])] if own.read else None)
            passes.append(self.reading_pass(asked, own, kept[-1], i, blanks))
        return replace(asked, passes=read_together(passes, kept))

    def reading(self, state: OrderedWork, told: Readings, i: int, blanks: Int[Tensor, " n"]) -> ReadingOrder:
        places, read = told.places(i), told.read[i]
        if not len(places):
            raise UserError("a model of one stream continues a text: at least one token of every row must be given.")
        following = blanks[:1] if len(blanks) else places[-1:]  # nothing is asked: it will be read again
        aims = aim_at(self.spec, torch.cat([places[1:], following]))
        assert state.aims is not None
        right = (state.aims[int(told.asked.live[i]), places[:read]] == aims[:read]).int().cumprod(0)
        return ReadingOrder(places, aims, min(int(right.sum()), len(places) - 1))  # the last one answers

    def reading_pass(
        self, asked: Ask, own: ReadingOrder, kept: Kept | None, i: int, blanks: Int[Tensor, " n"]
    ) -> Pass:
        """The pass of one row: new tokens, and the last one again for each blank but the first."""
        places, n = own.places[own.read :], max(0, len(blanks) - 1)
        k, last = len(places), places[-1:].expand(n)
        contents = torch.ones(k, k, dtype=torch.bool, device=places.device).tril()
        again = torch.cat([contents.new_ones(n, k - 1), contents.new_zeros(n, 1)], 1)
        rule = torch.cat([torch.cat([contents, contents.new_zeros(k, n)], 1), torch.cat([again, eye(n, places)], 1)])
        memory: Memory | None = None
        if self.cached:
            memory = Empty(asked.start + asked.tokens.shape[1] + n) if kept is None else kept.memory
        at = torch.cat([places, last])
        return Pass(
            asked.tokens[i, at - asked.start][None],
            Rule(rule),
            at,
            memory=memory,
            keep=None if memory is None else k,
            wanted=torch.arange(k - 1, k - 1 + len(blanks), device=places.device),
            aim=torch.cat([own.aims[own.read :], aim_at(self.spec, blanks[1:])]),
        )

    def commit(self, state: OrderedWork, asked: Ask, answer: NetworkAnswer) -> tuple[OrderedWork, Committed]:
        work, brought = self.inner.commit(state.work, asked, answer)
        return self.remember(state, asked, answer, work), brought

    def remember(self, state: OrderedWork, asked: Ask, answer: NetworkAnswer, work: Work) -> OrderedWork:
        """The state with this work, and with what the network has read for its answer."""
        assert state.aims is not None
        aims = state.aims.clone()
        told = readings(state, asked)
        for i, blanks in enumerate(blanks_of(asked)):
            own = self.reading(state, told, i, blanks)
            aims[int(asked.live[i]), own.places] = own.aims
        return replace(self.ordered.remember(state, asked, answer, work), aims=aims)


def blanks_of(asked: Ask) -> tuple[Int[Tensor, " _"], ...]:
    """The positions that each row asks for."""
    counts = torch.bincount(asked.row, minlength=len(asked.tokens)).tolist()
    return asked.position.split(counts)


def eye(n: int, like: Tensor) -> Tensor:
    return torch.eye(n, dtype=torch.bool, device=like.device)
