"""Continuous diffusion as a process: vectors lose their noise step by step, and the rounded text is shown.

The state is a window of noisy vectors. A call shows it to the network and moves it to the next noise level; the last
call of a window gives its tokens. Given text inside a window is held at its truth with fresh noise of the level: for
a model that was trained on whole texts this is an approximation. An objective with a `block` denoises block after
block instead, and sees the text before a block as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.diffusion.continuous import Continuous, NoisyWindow, Path, alpha, sigma
from unmask.diffusion.rows import rows_where
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.model.room import check_room
from unmask.random import Dice, gaussians, keys
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import InWindows, Sliding, Span, Whole, Windows, draw_tokens
from unmask.sampling.policies.gaussian import Move, VectorSteps
from unmask.sampling.policy import PolicyView
from unmask.sampling.process import PROCESSES, Ask, Committed, NetworkAnswer
from unmask.text.prompt.canvas import Canvas

HELD = 1 << 40  # numbers of the draws for given text begin here


@dataclass(frozen=True)
class Denoising:
    """Rows being denoised."""

    canvas: Canvas  # with the rounded text
    key: Int[Tensor, " b"]
    spans: tuple[Span, ...]  # windows still to fill; empty when all is done
    calls: int = 0  # so far, in all windows
    call: int = 0  # of the first of these windows
    z: Float[Tensor, "b s e"] | None = None
    guess: Float[Tensor, "b s e"] | None = None  # the last estimate of the clean vectors


@PROCESSES.register("continuous", "continuous diffusion: noise becomes vectors, and vectors become tokens")
@dataclass(frozen=True)
class ContinuousProcess(InWindows):
    """Continuous diffusion under a policy of steps."""

    name: ClassVar[str] = "continuous"
    needs: ClassVar[frozenset[str]] = frozenset({"vectors"})
    settled: ClassVar[bool] = False

    objective: Continuous
    network: Any  # a backbone
    policy: VectorSteps
    windows: Windows = field(default_factory=Whole)
    options: LogitOptions = field(default_factory=LogitOptions)
    parts: Mapping[str, nn.Module] = field(default_factory=dict)
    state: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, *, policy: Any, options: LogitOptions, windows: Windows | None, model: Model) -> "ContinuousProcess":
        objective = model.objective
        assert isinstance(objective, Continuous)
        if options.constraint is not None or options.hook is not None:
            raise UserError(
                f"a {objective.name} model draws all its tokens at once, so its draws cannot be restricted or guided "
                "one by one. For a pattern use rejection: --reject N (reject=N in Python)."
            )
        return cls(objective, model.network, policy, windows or Whole(), options, model.parts, model.state)

    @cached_property
    def path(self) -> Path:
        with torch.no_grad():
            return self.objective.path(self.policy.steps, self.parts)

    @torch.no_grad()
    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> Denoising:
        tokens = canvas.tokens
        check_room(self.objective, rows=len(tokens), vocab=self.network.spec.vocab, less="--batch")
        ids = torch.arange(len(tokens), device=tokens.device) if ids is None else ids
        spans = tuple(span for span in self.spans(canvas) if bool(free_in(canvas, span).any()))
        return self.entered(Denoising(canvas, keys(seed, ids), spans))

    def spans(self, canvas: Canvas) -> list[Span]:
        """The windows of a canvas; for an objective with blocks, a block each and the text before it."""
        length, trained = canvas.tokens.shape[1], self.network.spec.length
        if self.objective.block is None:
            return self.windows.spans(length)
        block = min(self.objective.block, trained)
        seen = self.windows.context if isinstance(self.windows, Sliding) else trained
        if not block <= seen <= trained:
            raise UserError(
                f"a window of {seen} tokens must hold a block of {block} and the text before it, and the network was "
                f"trained on {trained}: give a window from {block} to {trained}."
            )
        hidden = canvas.hidden.any(0).nonzero()
        begin = int(hidden[0]) if len(hidden) else length
        firsts = range(begin, length, block)
        ends = [min(first + block, length) for first in firsts]
        return [Span(max(0, end - seen), end, first, end) for first, end in zip(firsts, ends, strict=True)]

    def noisy_from(self, span: Span) -> int:
        """The first column of a window that is noisy: all of it, or the block at its end."""
        return span.start if self.objective.block is None else span.first

    def entered(self, state: Denoising) -> Denoising:
        """The state with pure noise in the first of its windows."""
        if not state.spans:
            return replace(state, z=None, guess=None)
        span = state.spans[0]
        shape = (span.stop - self.noisy_from(span), self.objective.features(self.network.spec.vocab))
        z = gaussians(state.key, state.calls, shape)
        return replace(state, call=0, z=self.held(state, z, self.path.gamma[0]), guess=None)

    def held(self, state: Denoising, z: Float[Tensor, "b s e"], gamma: Float[Tensor, ""]) -> Float[Tensor, "b s e"]:
        """z with given text at its noised truth, by noise that is drawn anew for every level."""
        span = state.spans[0]
        here = slice(self.noisy_from(span), span.stop)
        given = ~free_in(state.canvas, span)[:, here]
        if not bool(given.any()):
            return z
        tokens = state.canvas.tokens[:, here]
        x = self.objective.clean(tokens.masked_fill(tokens == state.canvas.mask, 0), self.parts)
        noise = gaussians(state.key, HELD + state.calls, tuple(z.shape[1:]))
        return torch.where(given[..., None], (alpha(gamma) * x + sigma(gamma) * noise).to(z.dtype), z)

    def window(self, state: Denoising) -> NoisyWindow:
        """What the network is shown in the next call."""
        assert state.z is not None
        span = state.spans[0]
        before = state.canvas.tokens[:, span.start : self.noisy_from(span)]
        return NoisyWindow(state.z, self.path.gamma[state.call], self.path.level[state.call], before, state.guess)

    @torch.no_grad()
    def ask(self, state: Denoising) -> Ask | None:
        if not state.spans or state.z is None:
            return None
        span, canvas = state.spans[0], state.canvas
        noisy = self.noisy_from(span)
        here = slice(span.start, span.stop)
        vectors = self.objective.entered(self.network, self.window(state), self.parts)
        b, w = vectors.shape[:2]
        place = torch.arange(span.start, span.stop, device=vectors.device)
        rows = rows_where((place >= noisy).expand(b, w))
        clock = torch.full_like(state.key, state.calls)
        free = free_in(canvas, span)[:, here]
        view = PolicyView(canvas.tokens[:, here], free, Dice(state.key, span.start), clock, (), canvas.mask, free)
        lengths = None if canvas.lengths is None else (canvas.lengths - span.start).clamp(1, w)
        return Ask(
            canvas.tokens[:, here],
            vectors.new_zeros(b),
            rows,
            torch.arange(b, device=vectors.device),
            view,
            span.start,
            lengths,
            canvas.frozen[:, here],
            None if canvas.spaced is None else canvas.spaced[:, here],
            vectors,
            "head" in self.objective.facts.unused,
        )

    @torch.no_grad()
    def commit(self, state: Denoising, asked: Ask, answer: NetworkAnswer) -> tuple[Denoising, Committed]:
        path = self.path
        assert state.z is not None
        gamma, after = path.gamma[state.call], path.gamma[state.call + 1]
        output = answer.logits.unflatten(0, state.z.shape[:2])
        reading = self.objective.meaning(output, self.window(state), self.parts, self.state, mask=state.canvas.mask)
        last = state.call + 1 == len(path.level)
        normal = gaussians(state.key, state.calls + 1, tuple(state.z.shape[1:]))
        greedy = not last or self.policy.last == "argmax"
        if not greedy:
            reading = self.objective.ended(reading, normal, self.parts, mask=state.canvas.mask)

        def draw(logits: Tensor) -> Tensor:
            return draw_tokens(asked.view, asked.rows, logits.flatten(0, -2), self.options).view(logits.shape[:-1])

        logits = self.options.meaning(asked, reading.logits.flatten(0, 1))
        tokens = logits.argmax(-1) if greedy else draw(logits)
        z = state.z
        state, brought = self.shown(state, asked, tokens, logits, everything=last)
        state = replace(state, calls=state.calls + 1, call=state.call + 1, guess=reading.x)
        if last:
            return self.entered(replace(state, spans=state.spans[1:], calls=state.calls + 1)), brought
        reading = reading._replace(logits=logits.view_as(reading.logits))
        z = self.policy.move(Move(z, reading, after, gamma, normal, draw))
        return replace(state, z=self.held(state, z, after)), brought

    def shown(
        self,
        state: Denoising,
        asked: Ask,
        tokens: Int[Tensor, " n"],
        logits: Float[Tensor, "n v"],
        *,
        everything: bool,
    ) -> tuple[Denoising, Committed]:
        """The state with rounded text, and the tokens that changed; at the end of a window all of them."""
        span, canvas = state.spans[0], state.canvas
        length = canvas.tokens.shape[1]
        at = asked.row * length + asked.position
        wanted = free_in(canvas, span).flatten()[at]
        if not everything:
            wanted &= canvas.tokens.flatten()[at] != tokens
        chosen = wanted.nonzero().squeeze(-1)
        at, tokens, logits = at[chosen], tokens[chosen], logits[chosen]
        rounded = canvas.tokens.flatten().index_copy(0, at, tokens).view_as(canvas.tokens)
        likely = logits.log_softmax(-1)
        log_probs = likely.gather(-1, tokens[:, None]).squeeze(-1)
        return replace(state, canvas=canvas.with_tokens(rounded)), Committed(at, tokens, log_probs, likely)


def free_in(canvas: Canvas, span: Span) -> Bool[Tensor, "b l"]:
    """The positions of the whole canvas that a window fills."""
    place = torch.arange(canvas.tokens.shape[1], device=canvas.tokens.device)
    return ~canvas.frozen & (place >= span.first) & (place < span.last)
