"""Process: a sampling loop split at the network call: `ask` gives its input, `commit` takes its output.

Both are pure functions of a state, so one loop serves Python, the terminal, films and a server that answers the
questions of many requests in one forward pass. Masked diffusion and autoregression are two processes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.model.backbone import Backbone, Reader, Spec
from unmask.model.passes.together import Counted, count_nothing, run_together
from unmask.model.passes.whole import whole
from unmask.model.passing import Memory, Pass
from unmask.registry import Registry
from unmask.sampling.policy import PolicyView
from unmask.text.prompt.canvas import Canvas


@dataclass(frozen=True)
class Ask:
    """The input of a network call: tokens, noise level, and the flat positions whose logits are needed."""

    tokens: Int[Tensor, "b w"]
    sigma: Float[Tensor, " b"]
    rows: Int[Tensor, " n"]  # flat positions over (b w)
    live: Int[Tensor, " b"]  # their rows of the canvas; finished rows are left out
    view: PolicyView  # what the policy saw
    start: int = 0  # position of the first column on the canvas
    lengths: Int[Tensor, " b"] | None = None  # of the rows, where they differ
    frozen: Bool[Tensor, "b w"] | None = None  # given text, which guidance hides
    spaced: Bool[Tensor, "b w"] | None = None  # where a token must begin with a space
    vectors: Float[Tensor, "b w d"] | None = None  # input vectors in place of tokens
    states: bool = False  # hidden states are wanted, not logits
    passes: tuple[
        Pass, ...
    ] = ()  # what the network reads, where it has a memory of these rows; empty: the whole rows

    @property
    def shown(self) -> Tensor:
        """Tokens, or vectors in place of them."""
        return self.tokens if self.vectors is None else self.vectors

    @property
    def row(self) -> Int[Tensor, " n"]:
        """The row of each flat position."""
        return self.rows // self.tokens.shape[1]

    @property
    def position(self) -> Int[Tensor, " n"]:
        """The position on the canvas of each flat position."""
        return self.rows % self.tokens.shape[1] + self.start


@dataclass(frozen=True)
class NetworkAnswer:
    """The output of a network call."""

    logits: Float[Tensor, "n v"]  # or hidden states (n d), if the question wants them
    memories: tuple[Memory | None, ...] = ()  # after each of the question's own passes


@dataclass(frozen=True)
class Committed:
    """The tokens that one network call committed, and after them those that took no call of their own."""

    rows: Int[Tensor, " n"]  # flat positions over the canvas (b l)
    tokens: Int[Tensor, " n"]
    log_probs: Float[Tensor, " n"]  # under the model, before temperature and truncation; 0: took no call
    likely: Float[Tensor, "m v"] | None = None  # of every token at the first m of them, for the alternatives


@dataclass(frozen=True)
class Step:
    """The result of one network call."""

    call: int  # 1, 2, 3, ...; 0: before any call, tokens to which a constraint leaves no alternative
    canvas: Canvas  # all rows, after this call
    rows: Int[Tensor, " n"]  # the flat positions over (b l) that were committed
    tokens: Int[Tensor, " n"]  # what was committed there
    log_probs: Float[Tensor, " n"]  # under the model, before temperature and truncation; 0: took no call
    live: int  # rows of the canvas in the network's batch


@runtime_checkable
class Process(Protocol):
    """A frozen dataclass with a name in `PROCESSES`. Its states are immutable values."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()  # what it needs of a model (`fitting`): see `Facts.gives`

    @classmethod
    def of(cls, *, policy: Any, options: Any, windows: Any, model: Any) -> "Process":
        raise TypeError(f"{cls.__name__} wraps another process")

    @property
    def law(self) -> str:
        """The distribution that the samples follow."""

    @property
    def scope(self) -> str:
        """What the network sees, as an addition to the law; empty: the whole text."""
        return ""

    @property
    def settled(self) -> bool:
        """Whether a token that was drawn never changes."""
        return True

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> Any:
        """The initial state. The seed and the rows' `ids` (0, 1, 2, ... by default) determine all random numbers."""

    def done(self, state: Any) -> bool:
        """Whether every row is finished."""

    def ask(self, state: Any) -> Ask | None:
        """The next question, about unfinished rows only; None when every row is filled."""

    def commit(self, state: Any, asked: Ask, answer: NetworkAnswer) -> tuple[Any, Committed]:
        """The state after the network's answer, and what was committed. `asked` is what `ask(state)` gave."""

    def canvas(self, state: Any) -> Canvas:
        """The current text."""


PROCESSES: Registry[Process] = Registry("process", room="unmask.sampling")


@runtime_checkable
class NetworkOfLengths(Protocol):
    """A network that accepts the lengths of its rows."""

    def __call__(self, x_t: Tensor, sigma: Tensor, rows: Tensor, *, lengths: Tensor) -> Tensor: ...


def answer(network: Any, question: Ask) -> NetworkAnswer:
    """The network's logits at the rows of a question. The network is a function, or a backbone."""
    if isinstance(network, (Backbone, Reader)):  # the protocol takes longer
        return answers(network, [question])[0]
    with torch.inference_mode():
        if question.lengths is None:
            return NetworkAnswer(network(question.shown, question.sigma, question.rows))
        return NetworkAnswer(network(question.shown, question.sigma, question.rows, lengths=question.lengths))


@torch.inference_mode()
def answers(network: Reader, questions: Sequence[Ask], counted: Counted = count_nothing) -> list[NetworkAnswer]:
    """The answers to questions of any kind, from one forward pass if the network can take them together."""
    passes = [passes_of(network.spec, question) for question in questions]
    states = run_together(network, [p for own in passes for p in own], counted)
    replies = []
    for question, own in zip(questions, passes, strict=True):
        mine, states = states[: len(own)], states[len(own) :]
        parts = [one.hidden.flatten(0, -2) for one in mine]
        hidden = torch.cat(parts) if len(parts) > 1 else parts[0]
        memories = tuple(one.memory for one in mine) if question.passes else ()
        replies.append(NetworkAnswer(hidden if question.states else network.head(hidden), memories))
    return replies


def passes_of(spec: Spec, question: Ask) -> tuple[Pass, ...]:
    """What a network reads to answer a question."""
    if question.passes:
        return question.passes
    return (whole(spec, question.shown, question.sigma, rows=question.rows, lengths=question.lengths),)


def run(
    process: Process, network: Any, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None
) -> Iterator[Step]:
    """Fill a canvas; yields after every network call, so the caller may show, stream or stop."""
    state, call = process.begin(canvas, seed=seed, ids=ids), 0
    begun = process.canvas(state)
    free = (canvas.hidden & ~begun.hidden).flatten().nonzero().squeeze(-1)
    if len(free):
        yield Step(call, begun, free, begun.tokens.flatten()[free], torch.zeros(len(free), device=free.device), 0)
    while (question := process.ask(state)) is not None:
        call += 1
        state, brought = process.commit(state, question, answer(network, question))
        yield Step(call, process.canvas(state), brought.rows, brought.tokens, brought.log_probs, len(question.live))
