"""Any-order generation as a process: blanks in the order of a policy, each token read once.

A call reads the tokens that were committed by the last one and asks at the blanks that the policy wants: as many
elements as there are new tokens and questions, whatever the length of the text. Given text is read first, from left
to right. Without `cached` every call reads everything again, in the same order, and gives the same tokens. Tokens
that a policy hides again or changes make the network read its row anew.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.model.model import Model
from unmask.model.passes.ordered import check_ordered, unread
from unmask.model.passing import Empty
from unmask.sampling.kept import Kept, kept_after, read_together
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Masked, OverMasked, Whole, Windows, Work
from unmask.sampling.policies.planned import FirstHitting
from unmask.sampling.policy import Policy
from unmask.sampling.process import PROCESSES, Ask, Committed, NetworkAnswer
from unmask.text.prompt.canvas import Canvas

UNREAD = -1


@dataclass(frozen=True)
class OrderedWork:
    """Rows being filled, the order in which their tokens were read, and the network's memory of them."""

    work: Work
    order: Int[Tensor, "b l"]  # when each position was read, 0 first; UNREAD: not yet
    tokens: Int[Tensor, "b l"]  # what was read there
    memories: tuple[Kept | None, ...]
    start: int = 0  # position of the window that was read
    aims: Int[Tensor, "b l"] | None = None  # in one stream: from where each token looked when it was read


@PROCESSES.register("any-order", "any-order networks: blanks in the order of a policy, each token read once")
@dataclass(frozen=True)
class AnyOrderProcess(OverMasked):
    """Any-order generation under a policy."""

    name: ClassVar[str] = "any-order"
    needs: ClassVar[frozenset[str]] = frozenset({"masks", "orders"})

    policy: Policy = field(default_factory=FirstHitting)
    windows: Windows = field(default_factory=Whole)
    options: LogitOptions = field(default_factory=LogitOptions)
    cached: bool = True  # False: read everything again in each call

    @classmethod
    def of(cls, *, policy: Policy, options: LogitOptions, windows: Windows | None, model: Model) -> "AnyOrderProcess":
        check_ordered(model.spec)
        return cls(policy, windows or Whole(), options)

    @cached_property
    def inner(self) -> Masked:
        return Masked(self.policy, self.windows, self.options)

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> OrderedWork:
        nothing = torch.full_like(canvas.tokens, UNREAD)
        return OrderedWork(
            self.inner.begin(canvas, seed=seed, ids=ids), nothing, nothing, (None,) * len(canvas.tokens)
        )

    def ask(self, state: OrderedWork) -> Ask | None:
        asked = self.inner.ask(state.work)
        if asked is None:
            return None
        width = asked.tokens.shape[1]
        counts = torch.bincount(asked.row, minlength=len(asked.tokens)).tolist()
        wanted = (asked.rows % width + asked.start).split(counts)
        begun, told = Empty(asked.start + 2 * width) if self.cached else None, readings(state, asked)
        passes, kept = [], told.kept(state)
        for i, (read, own) in enumerate(zip(told.read, kept, strict=True)):
            new, memory = told.places(i)[read:], begun if own is None else own.memory
            tokens = asked.tokens[i, new - asked.start]
            passes.append(unread(tokens, new, wanted[i], memory, mask=asked.view.mask))
        return replace(asked, passes=read_together(passes, kept))

    def commit(self, state: OrderedWork, asked: Ask, answer: NetworkAnswer) -> tuple[OrderedWork, Committed]:
        work, brought = self.inner.commit(state.work, asked, answer)
        return self.remember(state, asked, answer, work), brought

    def remember(self, state: OrderedWork, asked: Ask, answer: NetworkAnswer, work: Work) -> OrderedWork:
        """The state with this work, and with what the network has read for its answer."""
        told, order, tokens = readings(state, asked), state.order.clone(), state.tokens.clone()
        here = slice(asked.start, asked.start + asked.tokens.shape[1])
        order[asked.live], tokens[asked.live] = UNREAD, UNREAD
        order[asked.live, here] = torch.where(told.visible, told.sequence.argsort(1), UNREAD)
        tokens[asked.live, here] = torch.where(told.visible, asked.tokens, UNREAD)
        kept = kept_after(state.memories, asked, answer, work.canvas.hidden.any(1).tolist())
        return OrderedWork(work, order, tokens, kept, asked.start, state.aims)


@dataclass(frozen=True)
class Readings:
    """The visible tokens of a question's rows in the order of reading.

    What was read and has not changed keeps its place in the order; new tokens follow, from left to right.
    """

    asked: Ask
    visible: Bool[Tensor, "b w"]
    sequence: Int[Tensor, "b w"]  # columns in the order of reading; those that show no token come last
    counts: list[int]  # visible tokens
    read: list[int]  # how many of them the memory holds

    def places(self, i: int) -> Int[Tensor, " k"]:
        """The positions of a row's visible tokens."""
        return self.sequence[i, : self.counts[i]] + self.asked.start

    def kept(self, state: OrderedWork) -> list[Kept | None]:
        """What is remembered of the rows; None: nothing that is still right."""
        live = self.asked.live.tolist()
        return [state.memories[row] if read else None for row, read in zip(live, self.read, strict=True)]


def readings(state: OrderedWork, asked: Ask) -> Readings:
    live, width = asked.live, asked.tokens.shape[1]
    here, column = slice(asked.start, asked.start + width), torch.arange(width, device=asked.tokens.device)
    visible, order = asked.tokens != asked.view.mask, state.order[live]
    if asked.lengths is not None:
        visible = visible & (column < asked.lengths[:, None])
    same = (order[:, here] != UNREAD) & (state.tokens[live, here] == asked.tokens)
    key = torch.where(same, order[:, here], width + column).masked_fill(~visible, 2 * width)
    remembered = (order != UNREAD).sum(1)
    right = (same.sum(1) == remembered).tolist()
    read = [
        n if ok and asked.start == state.start and state.memories[row] is not None else 0
        for n, ok, row in zip(remembered.tolist(), right, live.tolist(), strict=True)
    ]
    return Readings(asked, visible, key.argsort(1), visible.sum(1).tolist(), read)
