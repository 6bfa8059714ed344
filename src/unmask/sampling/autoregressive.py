"""Autoregressive sampling as a process: left to right; a causal network with a cache reads each token once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.backbone import Memory
from unmask.model.model import Model
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Masked, Whole, Windows, Work
from unmask.sampling.policies.left_to_right import LeftToRight
from unmask.sampling.policy import Policy
from unmask.sampling.process import PROCESSES, Answer, Ask, Committed, Process, Step, run
from unmask.text.prompt.canvas import Canvas

SHORT = 48  # tokens: up to here a row of a joined forward pass costs less than a pass of its own for one token


@dataclass(frozen=True)
class AutoregressiveState:
    """Rows being continued, and the network's memory of them."""

    work: Work
    memory: Memory | None = None
    rows: Int[Tensor, " b"] | None = None  # rows of the canvas that the memory covers
    start: int = 0  # first position of the canvas that the memory covers


@PROCESSES.register("autoregressive", "left to right, each token read once")
@dataclass(frozen=True)
class AutoregressiveProcess(Process):
    """Left to right. A network with a memory reads every token once; any other reads the whole row in each call."""

    name: ClassVar[str] = "autoregressive"
    needs: ClassVar[frozenset[str]] = frozenset({"next token"})
    options: LogitOptions = field(default_factory=LogitOptions)
    windows: Windows = field(default_factory=Whole)
    remember: Callable[[int], Memory] | None = None  # an empty memory of a given capacity; None: there is none

    @classmethod
    def of(
        cls, *, policy: Policy, options: LogitOptions, windows: Windows | None, model: Model
    ) -> "AutoregressiveProcess":
        network = model.network
        return cls(options, windows or Whole(), network.memory if network.spec.incremental else None)

    @property
    def inner(self) -> Masked:
        return Masked(LeftToRight(), self.windows, self.options)

    @property
    def law(self) -> str:
        return self.inner.law

    @property
    def scope(self) -> str:
        return self.inner.scope

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> AutoregressiveState:
        check_prompts(canvas)
        return AutoregressiveState(self.inner.begin(canvas, seed=seed, ids=ids))

    def done(self, state: AutoregressiveState) -> bool:
        return self.inner.done(state.work)

    def ask(self, state: AutoregressiveState) -> Ask | None:
        asked = self.inner.ask(state.work)
        if asked is None or self.remember is None:
            return asked
        memory, column = self.memory(state, asked), int(asked.rows[0]) % asked.tokens.shape[1]
        return replace(asked, memory=memory, reads=asked.tokens[:, memory.filled : column])

    def memory(self, state: AutoregressiveState, asked: Ask) -> Memory:
        """The network's memory of the asked rows; empty in a new window."""
        assert self.remember is not None
        if state.memory is None or state.rows is None or state.start != asked.start:
            return self.remember(asked.tokens.shape[1])
        if len(state.rows) == len(asked.live):
            return state.memory
        return state.memory.take(torch.isin(state.rows, asked.live).nonzero().squeeze(-1))  # without finished rows

    def commit(self, state: AutoregressiveState, asked: Ask, answer: Answer) -> tuple[AutoregressiveState, Committed]:
        work, brought = self.inner.commit(state.work, asked, answer)
        return AutoregressiveState(work, answer.memory, asked.live, asked.start), brought

    def joinable(self, state: AutoregressiveState) -> Work | None:
        """Short texts are read anew in a joined forward pass sooner than each by itself from its memory."""
        known = int(state.work.canvas.hidden.any(0).long().argmax())  # the first position that is hidden in some row
        return state.work if known <= SHORT else None

    def rejoined(self, state: AutoregressiveState, work: Work) -> AutoregressiveState:
        """The memory lags behind what was drawn without it, and catches up when it is asked again."""
        return replace(state, work=work)

    def canvas(self, state: AutoregressiveState) -> Canvas:
        return state.work.canvas


def continue_text(
    network: Any, canvas: Canvas, *, seed: int = 0, options: LogitOptions | None = None
) -> Iterator[Step]:
    """Continue the prompts of a canvas to the end of their rows with a causal network."""
    return run(AutoregressiveProcess(options or LogitOptions(), remember=network.memory), network, canvas, seed=seed)


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
