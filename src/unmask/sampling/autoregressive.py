"""Autoregressive sampling as a process: left to right; a causal network with a cache reads each token once."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.model import Model
from unmask.model.passing import Causal, Empty, Memory, Pass
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Masked, OverMasked, Whole, Windows, Work
from unmask.sampling.policies.left_to_right import LeftToRight
from unmask.sampling.policy import Policy
from unmask.sampling.process import PROCESSES, Ask, Committed, NetworkAnswer, Step, run
from unmask.text.prompt.canvas import Canvas


@dataclass(frozen=True)
class AutoregressiveState:
    """Rows being continued, and the network's memory of them."""

    work: Work
    memory: Memory | None = None
    rows: Int[Tensor, " b"] | None = None  # rows of the canvas that the memory covers
    start: int = 0  # first position of the canvas that the memory covers


@PROCESSES.register("autoregressive", "left to right, each token read once")
@dataclass(frozen=True)
class AutoregressiveProcess(OverMasked):
    """Left to right. A network with a memory reads every token once; any other reads the whole row in each call."""

    name: ClassVar[str] = "autoregressive"
    needs: ClassVar[frozenset[str]] = frozenset({"next token"})
    options: LogitOptions = field(default_factory=LogitOptions)
    windows: Windows = field(default_factory=Whole)
    cached: bool = False  # the network remembers what it has read

    @classmethod
    def of(
        cls, *, policy: Policy, options: LogitOptions, windows: Windows | None, model: Model
    ) -> "AutoregressiveProcess":
        return cls(options, windows or Whole(), cached=model.spec.incremental)

    @cached_property
    def inner(self) -> Masked:
        return Masked(LeftToRight(), self.windows, self.options)

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> AutoregressiveState:
        check_prompts(canvas)
        return AutoregressiveState(self.inner.begin(canvas, seed=seed, ids=ids))

    def ask(self, state: AutoregressiveState) -> Ask | None:
        asked = self.inner.ask(state.work)
        if asked is None or not self.cached:
            return asked
        memory, column = self.memory(state, asked), int(asked.rows[0]) % asked.tokens.shape[1]
        reads = asked.tokens[:, memory.filled : column]
        # A row whose prompt is longer is read, and asked for nothing yet.
        whole = reads.shape[1] == 1 and len(asked.rows) == len(reads)
        last = None if whole else asked.row * reads.shape[1] + reads.shape[1] - 1
        return replace(asked, passes=(Pass(reads, Causal(), memory=memory, wanted=last),))

    def memory(self, state: AutoregressiveState, asked: Ask) -> Memory:
        """The network's memory of the asked rows; empty in a new window."""
        if state.memory is None or state.rows is None or state.start != asked.start:
            return Empty(asked.tokens.shape[1])
        if len(state.rows) == len(asked.live):
            return state.memory
        return state.memory.take(torch.isin(state.rows, asked.live).nonzero().squeeze(-1))  # without finished rows

    def commit(
        self, state: AutoregressiveState, asked: Ask, answer: NetworkAnswer
    ) -> tuple[AutoregressiveState, Committed]:
        work, brought = self.inner.commit(state.work, asked, answer)
        memory = answer.memories[0] if answer.memories else None
        return AutoregressiveState(work, memory, asked.live, asked.start), brought


def continue_text(
    network: Any, canvas: Canvas, *, seed: int = 0, options: LogitOptions | None = None
) -> Iterator[Step]:
    """Continue the prompts of a canvas to the end of their rows with a causal network."""
    return run(AutoregressiveProcess(options or LogitOptions(), cached=True), network, canvas, seed=seed)


def check_prompts(canvas: Canvas) -> None:
    """Refuse what an autoregressive network cannot do: begin without a token, or fill before given text."""
    free = canvas.hidden
    if bool(free[:, 0].any()):
        raise UserError("an autoregressive model continues a text: the first token of every row must be given.")
    real = torch.ones_like(free)
    if canvas.lengths is not None:
        real = torch.arange(free.shape[1], device=free.device) < canvas.lengths[:, None]
    if bool((free[:, :-1] & ~free[:, 1:] & real[:, 1:]).any()):
        raise UserError("an autoregressive model cannot fill blanks before given text; use a masked diffusion model.")
