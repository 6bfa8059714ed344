"""The loop: every sampler, every kind of canvas. One turn is one network call."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.sampling.logits import Ask, Shape
from unmask.sampling.masked import Windows, ask, begin, commit
from unmask.sampling.policies.planned import FirstHitting
from unmask.sampling.policy import Policy
from unmask.shapes import Network
from unmask.text.prompt.canvas import Canvas


@runtime_checkable
class NetworkOfLengths(Protocol):
    """A network that can be told the lengths of its rows."""

    def __call__(self, x_t: Tensor, sigma: Tensor, rows: Tensor, *, lengths: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Step:
    """What one network call brought."""

    call: int  # 1, 2, 3, ...
    canvas: Canvas  # all rows, after this call
    rows: Int[Tensor, " n"]  # the flat positions over (b l) that were committed
    tokens: Int[Tensor, " n"]  # what was committed there
    log_probs: Float[Tensor, " n"]  # their log-probability under the model, before temperature and truncation
    live: int  # rows of the canvas that the network was shown


@torch.inference_mode()
def answer(network: Network | NetworkOfLengths, question: Ask) -> Float[Tensor, "n v"]:
    """The network's logits at the rows of a question."""
    if question.lengths is None:
        return network(question.tokens, question.sigma, question.rows)  # type: ignore[call-arg]
    return network(question.tokens, question.sigma, question.rows, lengths=question.lengths)  # type: ignore[call-arg]


def fill(
    network: Network | NetworkOfLengths,
    canvas: Canvas,
    policy: Policy | None = None,
    *,
    seed: int = 0,
    ids: Int[Tensor, " b"] | None = None,
    windows: Windows | None = None,
    shape: Shape | None = None,
) -> Iterator[Step]:
    """Fill the masks of a canvas; yields after every network call, so the caller may show, stream or stop.

        for step in fill(model.network.logits, blank(4, 128, mask=model.mask), seed=0):
            print(tokenizer.decode(step.canvas.tokens[0]))

    policy   where to commit at each call: `FirstHitting()` by default, which is exact; `policy.law` says what the
             samples follow
    seed     with a row's number it fixes the row, whatever stands beside it in the batch
    ids      the rows' numbers, 0, 1, 2, ... by default: rows 32..63 of a long run are `ids=torch.arange(32, 64)`
    windows  `Sliding(context, stride)` for canvases longer than the network can see, `Blocks(size)` for left to right
    shape    temperature, top-k, top-p, banned and forced tokens, repetition, a hook on the logits

    Frozen tokens never change and no mask is left. A canvas without blanks takes no call. A canvas with rows of
    different lengths needs a network that accepts `lengths=`.
    """
    work = begin(canvas, policy or FirstHitting(), seed=seed, ids=ids, windows=windows, shape=shape)
    call = 0
    while (question := ask(work)) is not None:
        call += 1
        work, brought = commit(work, question, answer(network, question))
        yield Step(call, work.canvas, brought.rows, brought.tokens, brought.log_probs, len(question.live))
