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
from unmask.model.passing import Empty, Memory
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
    memories: tuple[Memory | None, ...]
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
        passes = []
        for i, row in enumerate(asked.live.tolist()):
            places, read = to_read(state, asked, i)
            memory = (state.memories[row] if read else None) or Empty(asked.start + 2 * width)
            tokens = asked.tokens[i, places[read:] - asked.start]
            passes.append(
                unread(tokens, places[read:], wanted[i], memory if self.cached else None, mask=asked.view.mask)
            )
        return replace(asked, passes=tuple(passes))

    def commit(self, state: OrderedWork, asked: Ask, answer: NetworkAnswer) -> tuple[OrderedWork, Committed]:
        work, brought = self.inner.commit(state.work, asked, answer)
        return self.remember(state, asked, answer, work), brought

    def remember(self, state: OrderedWork, asked: Ask, answer: NetworkAnswer, work: Work) -> OrderedWork:
        """The state with this work, and with what the network has read for its answer."""
        order, tokens, memories = state.order.clone(), state.tokens.clone(), list(state.memories)
        going = work.canvas.hidden.any(1).tolist()
        for i, row in enumerate(asked.live.tolist()):
            places, _ = to_read(state, asked, i)
            order[row], tokens[row] = UNREAD, UNREAD
            order[row, places] = torch.arange(len(places), device=places.device)
            tokens[row, places] = asked.tokens[i, places - asked.start]
            memories[row] = answer.memories[i] if self.cached and going[row] else None
        return OrderedWork(work, order, tokens, tuple(memories), asked.start, state.aims)


def to_read(state: OrderedWork, asked: Ask, i: int) -> tuple[Int[Tensor, " k"], int]:
    """The positions of a row's visible tokens in the order of reading, and how many the memory holds of them.

    What was read and has not changed keeps its place in the order; new tokens follow, from left to right.
    """
    row, width = int(asked.live[i]), asked.tokens.shape[1]
    here = slice(asked.start, asked.start + width)
    shown, order = asked.tokens[i], state.order[row, here]
    same = (order != UNREAD) & (state.tokens[row, here] == shown)
    places = visible_places(asked, i)
    key = torch.where(same, order, width + torch.arange(width, device=shown.device))[places]
    places = places[key.argsort()]
    remembered = int((state.order[row] != UNREAD).sum())
    whole = asked.start == state.start and int(same.sum()) == remembered and state.memories[row] is not None
    return places + asked.start, remembered if whole else 0


def visible_places(asked: Ask, i: int) -> Int[Tensor, " k"]:
    """The columns of a question's row that show a token."""
    shown: Bool[Tensor, " w"] = asked.tokens[i] != asked.view.mask
    if asked.lengths is not None:
        shown = shown & (torch.arange(len(shown), device=shown.device) < asked.lengths[i])
    return shown.nonzero().squeeze(1)
