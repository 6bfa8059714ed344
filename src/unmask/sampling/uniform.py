"""Uniform diffusion as a process: random tokens become text, all of them redrawn at every step. [D3PM]

A network that was trained so sees no mask: blanks begin as tokens of the kernel's prior, and a step draws each from
the kernel's p(x_s | x_t). Given text stays, and is shown as it is. Any kernel can be drawn in this way.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.kernel import Kernel, KernelStep
from unmask.diffusion.rows import forbid, rows_where
from unmask.diffusion.times import grid
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.random import ORDER, TOKEN, Dice, keys
from unmask.sampling.logits import LogitOptions, inverse_cdf
from unmask.sampling.masked import InWindows, Span, Whole, Windows, seen_hidden
from unmask.sampling.policies.uniform import UniformSteps
from unmask.sampling.policy import PolicyView
from unmask.sampling.process import PROCESSES, Ask, Committed, NetworkAnswer
from unmask.text.prompt.canvas import Canvas


@dataclass(frozen=True)
class Scrambled:
    """Rows being redrawn."""

    canvas: Canvas  # blanks that no step has reached are masks
    key: Int[Tensor, " b"]
    spans: tuple[Span, ...]  # windows still to fill; empty when all is done
    free: Bool[Tensor, "b l"]  # what the first of them redraws
    x: Int[Tensor, "b l"]  # the tokens that the network sees
    step: int = 0  # of this window


@PROCESSES.register("uniform", "uniform diffusion: random tokens, redrawn step by step")
@dataclass(frozen=True)
class UniformProcess(InWindows):
    """Uniform diffusion under a policy of steps."""

    name: ClassVar[str] = "uniform"
    needs: ClassVar[frozenset[str]] = frozenset({"kernel"})
    settled: ClassVar[bool] = False
    kernel: Kernel
    policy: UniformSteps = field(default_factory=UniformSteps)
    windows: Windows = field(default_factory=Whole)
    options: LogitOptions = field(default_factory=LogitOptions)

    @classmethod
    def of(cls, *, policy: Any, options: LogitOptions, windows: Windows | None, model: Model) -> "UniformProcess":
        if options.constraint is not None:
            raise UserError(
                f"a {model.objective.name} model draws all its tokens at once, so its draws cannot be restricted one "
                "by one. For a pattern use rejection: --reject N (reject=N in Python)."
            )
        kernel = model.objective.kernel(model.parts)
        assert kernel is not None
        return cls(kernel, policy, windows or Whole(), options)

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> Scrambled:
        tokens = canvas.tokens
        ids = torch.arange(len(tokens), device=tokens.device) if ids is None else ids
        spans = tuple(self.windows.spans(tokens.shape[1]))
        return self.entered(Scrambled(canvas, keys(seed, ids), spans, canvas.hidden, tokens))

    def entered(self, state: Scrambled) -> Scrambled:
        """The state with random tokens at the blanks of the next window that has any."""
        canvas, spans = state.canvas, state.spans
        while spans and not bool(blanks(canvas, spans[0]).any()):
            spans = spans[1:]
        if not spans:
            return replace(state, spans=(), x=canvas.tokens)
        free = blanks(canvas, spans[0])
        u = Dice(state.key).grid(canvas.tokens.shape[1], ORDER)
        x = torch.where(free, self.kernel.prior(u, mask=canvas.mask), canvas.tokens)
        return replace(state, spans=spans, free=free, x=x, step=0)

    def ask(self, state: Scrambled) -> Ask | None:
        if not state.spans:
            return None
        span, canvas = state.spans[0], state.canvas
        here = slice(span.start, span.stop)
        live = state.free.any(1).nonzero().squeeze(-1)
        x, free = state.x[live, here], state.free[live, here]
        t = grid(self.policy.steps).to(x.device)[state.step].expand(len(live))
        clock = torch.full_like(live, state.step)
        view = PolicyView(x, free, Dice(state.key[live], span.start), clock, (), canvas.mask, free)
        lengths = None if canvas.lengths is None else (canvas.lengths[live] - span.start).clamp(1, x.shape[1])
        spaced = None if canvas.spaced is None else canvas.spaced[live, here]
        sigma = self.kernel.sigma(t).float()
        return Ask(x, sigma, rows_where(free), live, view, span.start, lengths, canvas.frozen[live, here], spaced)

    def commit(self, state: Scrambled, asked: Ask, answer: NetworkAnswer) -> tuple[Scrambled, Committed]:
        canvas, length = state.canvas, state.canvas.tokens.shape[1]
        logits = forbid(self.options.meaning(asked, answer.logits), canvas.mask)
        likely = logits.log_softmax(-1)
        tokens = self.drawn(state, asked, self.options.sharpen(logits).log_softmax(-1))
        at = asked.live[asked.row] * length + asked.position
        x = state.x.flatten().index_copy(0, at, tokens).view_as(state.x)
        log_probs = likely.gather(-1, tokens[:, None]).squeeze(-1)
        state = replace(state, canvas=canvas.with_tokens(torch.where(state.free, x, canvas.tokens)), x=x)
        brought = Committed(at, tokens, log_probs, likely)
        if state.step + 1 < self.policy.steps:
            return replace(state, step=state.step + 1), brought
        return self.entered(replace(state, spans=state.spans[1:])), brought

    def drawn(self, state: Scrambled, asked: Ask, log_p: Float[Tensor, "n v"]) -> Int[Tensor, " n"]:
        """x_s at the asked positions."""
        times = grid(self.policy.steps).to(log_p.device)[state.step : state.step + 2]
        t, s = (one.expand(len(log_p)) for one in times)
        if state.step + 1 == self.policy.steps and self.policy.last == "argmax":
            return log_p.argmax(-1)
        x_t = asked.tokens.flatten()[asked.rows]
        step = self.kernel.log_step(log_p.double(), KernelStep(x_t, s, t, state.canvas.mask))
        column = asked.rows % asked.tokens.shape[1]
        return inverse_cdf(step, asked.view.dice.at(asked.row, column, asked.view.clock[asked.row], TOKEN))


def blanks(canvas: Canvas, span: Span) -> Bool[Tensor, "b l"]:
    free = torch.zeros_like(canvas.hidden)
    free[:, span.start : span.stop] = seen_hidden(canvas.hidden, span)
    return free
