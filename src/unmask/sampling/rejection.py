"""Rejection sampling: rows that do not match a constraint are drawn again, without restriction, until they do.

The samples follow the model's distribution given the pattern; with restricted draws they do not.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.process import Ask, Committed, NetworkAnswer, Process
from unmask.text.prompt.canvas import Canvas


@dataclass(frozen=True)
class Trying:
    """Rows of which some match already and the others are drawn again."""

    inner: Any
    blank: Canvas  # all rows, before drawing
    tokens: Int[Tensor, "b l"]  # of all rows, now
    rows: Int[Tensor, " k"]  # rows being drawn
    seed: int
    ids: Int[Tensor, " b"]
    attempt: int = 0


@dataclass(frozen=True)
class Rejection(Process):
    """A process whose rows are drawn until they match."""

    name: ClassVar[str] = "rejection"
    settled: ClassVar[bool] = False
    process: Process
    constraint: Constraint
    tries: int

    @property
    def law(self) -> str:
        return self.process.law

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> Trying:
        self.constraint.check(canvas)
        rows = torch.arange(len(canvas.tokens), device=canvas.tokens.device)
        ids = rows if ids is None else ids
        inner = self.process.begin(canvas, seed=seed, ids=ids)
        return self.next(Trying(inner, canvas, canvas.tokens, rows, seed, ids))

    def next(self, state: Trying) -> Trying:
        """When the rows being drawn are finished, start again with those that do not match."""
        if not self.process.done(state.inner) or not len(state.rows):
            return state
        tokens = state.tokens.index_copy(0, state.rows, self.process.canvas(state.inner).tokens)
        fits: Bool[Tensor, " b"] = self.constraint.matches(state.blank.with_tokens(tokens))
        wrong = (~fits).nonzero().squeeze(-1)
        if not len(wrong):
            return replace(state, tokens=tokens, rows=wrong)
        if state.attempt + 1 == self.tries:
            raise UserError(
                f"{len(fits) - len(wrong)} of {len(fits)} samples matched in {self.tries} tries: the pattern is too "
                "unlikely for rejection. Allow more tries, or leave reject out: each draw is then restricted to what "
                "can still match."
            )
        attempt = state.attempt + 1
        inner = self.process.begin(state.blank.take(wrong), seed=state.seed + (attempt << 40), ids=state.ids[wrong])
        tokens = tokens.index_copy(0, wrong, state.blank.tokens[wrong])
        return self.next(replace(state, inner=inner, tokens=tokens, rows=wrong, attempt=attempt))

    def done(self, state: Trying) -> bool:
        return not len(state.rows)

    def ask(self, state: Trying) -> Ask | None:
        return None if self.done(state) else self.process.ask(state.inner)

    def commit(self, state: Trying, asked: Ask, answer: NetworkAnswer) -> tuple[Trying, Committed]:
        inner, brought = self.process.commit(state.inner, asked, answer)
        length = state.tokens.shape[1]
        rows = state.rows[brought.rows // length] * length + brought.rows % length
        tokens = state.tokens.index_copy(0, state.rows, self.process.canvas(inner).tokens)
        return self.next(replace(state, inner=inner, tokens=tokens)), replace(brought, rows=rows)

    def canvas(self, state: Trying) -> Canvas:
        return state.blank.with_tokens(state.tokens)
