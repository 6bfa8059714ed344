"""Block diffusion as a process: blocks from left to right, within a block any policy of masked diffusion.

Finished blocks are read once: their keys and values are kept, row by row, and a call computes the tokens of one block
only. A block is stored by the first call of the next one, so calls are reveals. Without `cached` every call reads the
whole text again and gives the same tokens.

A block is given the text before its end. Text after it, as around a blank in the middle, is not seen.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UserError
from unmask.model.formats.dialects import family_of
from unmask.model.model import Model
from unmask.model.passes.doubled import check_blockwise
from unmask.model.passes.pieces import BlockRule, piece
from unmask.model.passing import Empty
from unmask.sampling.kept import Kept, kept_after, read_together
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Masked, OverMasked, Sliding, Span, Work
from unmask.sampling.policies.planned import FirstHitting
from unmask.sampling.policy import Policy
from unmask.sampling.process import PROCESSES, Ask, Committed, NetworkAnswer
from unmask.text.prompt.canvas import Canvas


@dataclass(frozen=True)
class BlockSpans:
    """Blocks from left to right; the network sees what is before the end of a block."""

    size: int
    part: int = 0  # tokens of a block that are filled before the next ones of it; 0: all
    opens: bool = False  # the first token of a block is drawn before the others are seen
    short: int = 0  # tokens that the first block has less than the others

    def spans(self, length: int) -> list[Span]:
        spans = []
        for begin in range(-self.short, length, self.size):
            end = min(begin + self.size, length)
            for low, high in pairwise([*range(begin, end, self.part or self.size), end]):
                if self.opens and low == begin > 0:
                    spans.append(Span(0, low + 1, low, low + 1))
                    low += 1
                if max(0, low) < high:
                    spans.append(Span(0, end, max(0, low), high))
        return spans


@dataclass(frozen=True)
class BlockWork:
    """Rows being filled, and the network's memory of each; None: nothing is read yet, or nothing is left to fill."""

    work: Work
    memories: tuple[Kept | None, ...]
    short: int = 0  # tokens that the first block has less than the others


@PROCESSES.register("blockwise", "block diffusion: blocks from left to right, each token read once")
@dataclass(frozen=True)
class Blockwise(OverMasked):
    """Block diffusion under a policy."""

    name: ClassVar[str] = "blockwise"
    needs: ClassVar[frozenset[str]] = frozenset({"masks", "blocks"})

    size: int  # S, tokens per block
    window: int  # tokens that a block sees, its own included; whole blocks of them
    before: bool = False  # the network predicts position i from the state of i − 1
    policy: Policy = field(default_factory=FirstHitting)
    options: LogitOptions = field(default_factory=LogitOptions)
    cached: bool = True  # False: read everything again in each call
    part: int = 0  # tokens of a block that are filled before the next ones of it; 0: all
    opens: bool = False  # the first token of a block is drawn before the others are seen [Fast-dLLM v2]
    aligned: bool = False  # a block begins where the prompt ends, so that the first one may be short [Tiny-A2D]

    def __post_init__(self) -> None:
        if self.window < 2 * self.size:
            raise UserError(
                f"a window must hold at least two blocks of {self.size} tokens: give {2 * self.size} or more; "
                f"saw {self.window}."
            )

    @classmethod
    def of(cls, *, policy: Policy, options: LogitOptions, windows: Sliding | None, model: Model) -> "Blockwise":
        size = model.objective.block
        assert size is not None
        check_blockwise(model.spec)
        if windows is not None and windows.stride != Sliding.usual(windows.context).stride:
            raise UserError("the window of a block model moves on by one block at a time: leave the stride out.")
        window = max(model.spec.length, 2 * size) if windows is None else windows.context
        family, opens = family_of(model.settings), model.objective.opens
        own: dict[str, Any] = {} if family is None else {"part": family.part, "aligned": family.aligned}
        return cls(size, window, model.spec.before, policy, options, opens=opens, **own)

    @cached_property
    def inner(self) -> Masked:
        return Masked(self.policy, BlockSpans(self.size, self.part, self.opens), self.options)

    @property
    def scope(self) -> str:
        before = self.window // self.size * self.size - self.size
        return f", in blocks of {self.size} tokens, each given the {before} tokens before it"

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> BlockWork:
        short = self.short(canvas) if self.aligned else 0
        inner = replace(self.inner, windows=BlockSpans(self.size, self.part, self.opens, short))
        return BlockWork(inner.begin(canvas, seed=seed, ids=ids), (None,) * len(canvas.tokens), short)

    def short(self, canvas: Canvas) -> int:
        """The tokens that the first block lacks, where a block begins at the end of the prompt."""
        given = set(canvas.frozen.long().cumprod(1).sum(1).tolist())
        if len(given) > 1:
            raise UserError("this model's blocks begin after the prompt: draw prompts of several lengths one by one.")
        return -given.pop() % self.size

    def ask(self, state: BlockWork) -> Ask | None:
        asked = self.inner.ask(state.work)
        if asked is None:
            return None
        begun, width = state.work.spans[0].first + state.short, asked.tokens.shape[1]
        first = max(0, begun // self.size * self.size - state.short)
        stops = [width] * len(asked.tokens) if asked.lengths is None else asked.lengths.tolist()
        counts = torch.bincount(asked.row, minlength=len(asked.tokens)).tolist()
        wanted = (asked.rows % width - first).split(counts)
        rule, passes = BlockRule(self.size, self.window, self.before, state.short), []
        kept = [state.memories[row] for row in asked.live.tolist()]
        # If one row needs the token before the block, all read it: they then stay alike.
        led = first > 0 and self.before and any(0 in columns.tolist() for columns in wanted)
        for i, own in enumerate(kept):
            memory = Empty() if own is None else own.memory
            tokens = asked.tokens[i, memory.filled : stops[i]]
            lead = int(asked.tokens[i, first - 1]) if led else None
            passes.append(piece(rule, tokens, memory, first=first, wanted=wanted[i], lead=lead))
        return replace(asked, passes=read_together(passes, kept))

    def commit(self, state: BlockWork, asked: Ask, answer: NetworkAnswer) -> tuple[BlockWork, Committed]:
        work, brought = self.inner.commit(state.work, asked, answer)
        return self.remember(state, asked, answer, work), brought

    def remember(self, state: BlockWork, asked: Ask, answer: NetworkAnswer, work: Work) -> BlockWork:
        """The state with this work, and with what the network has read for its answer."""
        going = [self.cached and more for more in work.canvas.hidden.any(1).tolist()]
        return BlockWork(work, kept_after(state.memories, asked, answer, going), state.short)
