"""Stale keys: a cache for networks that see both sides, as an approximation of masked diffusion.

A token that is drawn changes the states of all others, so each call would have to compute their keys and values anew.
A cache keeps them for some calls: a call then reads the new tokens, the positions that are asked for and those that
the cache reads `fresh`; after `every` calls the whole row is read again. With every=1 nothing is stale: samples are
those without a cache. A network of one layer has no stale keys, because those of the first layer follow from the
tokens alone. [Fast-dLLM, dKV-Cache]
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.backbone import Spec
from unmask.model.passes.whole import rows_before
from unmask.model.passing import Empty, Full, Memory, Pass
from unmask.registry import Registry
from unmask.sampling.masked import Masked, OverMasked, Work
from unmask.sampling.process import Ask, Committed, NetworkAnswer, Process
from unmask.settings import check_shares
from unmask.text.prompt.canvas import Canvas


@dataclass(frozen=True)
class Cache(ABC):
    """Which positions each call reads besides the new and the asked ones. A frozen dataclass in `CACHES`."""

    every: int = 8  # calls from one reading of the whole row to the next; 1: no cache

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"a cache is refreshed after 1 call or more; saw every={self.every}.")

    @abstractmethod
    def fresh(self, hidden: Bool[Tensor, " w"]) -> Bool[Tensor, " w"]:
        """The positions of a row that are read in every call, given its blanks."""

    def renews(self, logits: Float[Tensor, "n v"]) -> bool:
        """Whether these answers for a row are reason enough to read all of it in the next call."""
        return False

    @property
    def exact(self) -> bool:
        """Whether every call reads everything."""
        return self.every == 1

    @property
    def rule(self) -> str:
        """When a row is read again, as part of the law."""
        return f"refreshed every {self.every} calls"


CACHES: Registry[Cache] = Registry("cache", inline=True)


@CACHES.register("interval", "a call reads the new and the asked tokens; the whole row every N calls")
@dataclass(frozen=True)
class IntervalCache(Cache):
    def fresh(self, hidden: Bool[Tensor, " w"]) -> Bool[Tensor, " w"]:
        return torch.zeros_like(hidden)


@CACHES.register("confidence", "a call reads the new and the asked tokens; the whole row after an uncertain answer")
@dataclass(frozen=True)
class Confidence(IntervalCache):
    every: int = 64  # calls from one reading of the whole row to the next, at most; 1: no cache
    tau: float = 0.5  # an answer whose likeliest token has less probability is uncertain; 1: no cache

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(tau=self.tau)

    def renews(self, logits: Float[Tensor, "n v"]) -> bool:
        return bool((logits.softmax(-1).amax(-1) < self.tau).any()) or self.tau == 1

    @property
    def exact(self) -> bool:
        return self.every == 1 or self.tau == 1

    @property
    def rule(self) -> str:
        return f"refreshed after an answer below {self.tau:g}, and every {self.every} calls"


@CACHES.register("prefix", "a call reads everything from the first blank on")
@dataclass(frozen=True)
class Prefix(Cache):
    def fresh(self, hidden: Bool[Tensor, " w"]) -> Bool[Tensor, " w"]:
        return hidden.int().cummax(0).values.bool()


@CACHES.register("dual", "a call reads everything from the first blank to the last")
@dataclass(frozen=True)
class Dual(Cache):
    def fresh(self, hidden: Bool[Tensor, " w"]) -> Bool[Tensor, " w"]:
        ahead = hidden.int()
        return (ahead.cummax(0).values & ahead.flip(0).cummax(0).values.flip(0)).bool()


@dataclass(frozen=True)
class StaleWork:
    """Rows being filled, and what the network remembers of them."""

    work: Work
    tokens: Int[Tensor, "b l"]  # as they were read last
    memories: tuple[Memory | None, ...]
    calls: tuple[int, ...]  # of each row since it was read as a whole
    start: int = 0  # position of the window that was read


@dataclass(frozen=True)
class Stale(OverMasked):
    """Masked diffusion with a cache of stale keys."""

    name: ClassVar[str] = "stale"
    masked: Masked
    cache: Cache
    spec: Spec

    def __post_init__(self) -> None:
        can = self.spec.abilities
        if not (isinstance(self.spec.own_rule, Full) and can.memory and can.positions):
            raise UserError(
                f"a cache is for networks with attention that see both sides, and this {self.spec.name} is none: "
                "leave the cache out. Networks that read forward, in blocks or in any order have an exact one."
            )

    @property
    def inner(self) -> Masked:
        return self.masked

    @property
    def law(self) -> str:
        if self.cache.exact:
            return self.inner.law
        return f"approximate (stale keys, {self.cache.rule}; without them: {self.inner.law})"

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> StaleWork:
        rows = len(canvas.tokens)
        work = self.inner.begin(canvas, seed=seed, ids=ids)
        return StaleWork(work, canvas.tokens, (None,) * rows, (0,) * rows)

    def ask(self, state: StaleWork) -> Ask | None:
        asked = self.inner.ask(state.work)
        if asked is None:
            return None
        width = asked.tokens.shape[1]
        rows = rows_before(asked.rows, width) if self.spec.before else asked.rows
        counts = torch.bincount(asked.row, minlength=len(asked.tokens)).tolist()
        wanted = (rows % width).split(counts)
        return replace(asked, passes=tuple(self.reading(state, asked, i, wanted[i]) for i in range(len(wanted))))

    def reading(self, state: StaleWork, asked: Ask, i: int, wanted: Int[Tensor, " n"]) -> Pass:
        """The pass of one row: the whole of it, or what is not taken from the cache."""
        row, tokens = int(asked.live[i]), asked.tokens[i]
        if asked.lengths is not None:
            tokens = tokens[: int(asked.lengths[i])]
        here = torch.ones_like(tokens, dtype=torch.bool)
        memory: Memory = Empty(len(tokens))
        if not self.whole(state, asked, row):
            memory = state.memories[row] or memory
            here = tokens != state.tokens[row, asked.start : asked.start + len(tokens)]
            here = here | self.cache.fresh(tokens == asked.view.mask)
            here[wanted] = True
        places = here.nonzero().squeeze(1)
        at = here.cumsum(0)[wanted] - 1
        return Pass(tokens[here][None], Full(), places, asked.sigma[i : i + 1], memory=memory, wanted=at)

    def whole(self, state: StaleWork, asked: Ask, row: int) -> bool:
        """Whether a row is read anew."""
        old = state.memories[row] is None or state.start != asked.start
        return old or state.calls[row] % self.cache.every == 0

    def commit(self, state: StaleWork, asked: Ask, answer: NetworkAnswer) -> tuple[StaleWork, Committed]:
        work, brought = self.inner.commit(state.work, asked, answer)
        tokens, memories, calls = state.tokens.clone(), list(state.memories), list(state.calls)
        for i, row in enumerate(asked.live.tolist()):
            calls[row] = 1 if self.whole(state, asked, row) else calls[row] + 1
            if self.cache.renews(answer.logits[asked.row == i]):
                calls[row] = 0
            tokens[row, asked.start : asked.start + asked.tokens.shape[1]] = asked.tokens[i]
            memories[row] = answer.memories[i]
        return StaleWork(work, tokens, tuple(memories), tuple(calls), asked.start), brought


def with_cache(process: Process, cache: str, spec: Spec) -> Stale:
    """A process with a cache, `interval` or `dual:every=16`."""
    if not isinstance(process, Masked):
        raise UserError(
            f"a cache of stale keys is for masked diffusion; this model is sampled by the process {process.name!r}, "
            "which needs none. Leave the cache out."
        )
    return Stale(process, CACHES.make(cache), spec)
