"""Drafts: a faster model proposes the next tokens, and an autoregressive model checks all of them in one pass.

The checking model draws every token itself, with the random numbers and settings that it has without drafts, from the
logits of one pass over the proposed text. A proposal that is the token it drew costs no pass of its own; the first
one that is not ends the round. So the samples are its own, token for token: drafts change the time, never the law.
Proposals are drawn with the same random numbers, so that they agree as often as the two models do.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.rows import forbid
from unmask.errors import UserError
from unmask.model.key_values import KeyValues
from unmask.model.model import Model
from unmask.model.passing import Causal, Empty, Memory, Pass
from unmask.random import TOKEN, Dice
from unmask.sampling.autoregressive import AutoregressiveProcess, check_prompts
from unmask.sampling.fitting import process_for
from unmask.sampling.logits import LogitOptions, inverse_cdf
from unmask.sampling.masked import Masked, OverMasked, Work, ask, commit, enter_window
from unmask.sampling.policy import Policy, PolicyView
from unmask.sampling.process import Ask, Committed, NetworkAnswer, Process, answer
from unmask.text.prompt.canvas import Canvas


@runtime_checkable
class Remembering(Protocol):
    """A process of masked diffusion that can be told what its blanks became."""

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> Any: ...

    def ask(self, state: Any) -> Ask | None: ...

    def remember(self, state: Any, asked: Ask, answer: NetworkAnswer, work: Work) -> Any:
        """The state after the network's answer with this work, whatever the policy would have made of it."""


@dataclass(frozen=True)
class NextBlanks(Policy):
    """The leftmost blanks of a row, several at once: proposals."""

    name: ClassVar[str] = "next-blanks"
    count: int = 4

    @property
    def law(self) -> str:
        return f"approximate ({self.count} tokens per call, each as if the others were not known)"

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        first = view.hidden.cumsum(1) <= self.count
        return view.hidden & first, view.hidden.float().mean(1)


@dataclass(frozen=True, eq=False)
class Drafter:
    """A model that proposes tokens."""

    process: Remembering
    network: Any

    def proposals(self, state: Any, work: Work) -> tuple[Any, list[Int[Tensor, " _"]]]:
        """The state after one call, and the next tokens of each row."""
        own = state if isinstance(state, Work) else state.work
        known = enter_window(replace(own, canvas=work.canvas))
        state = known if isinstance(state, Work) else replace(state, work=known)
        drafts = [work.key[:0]] * len(work.key)
        asked = self.process.ask(state)
        if asked is None:
            return state, drafts
        reply = answer(self.network, asked)
        row, position = asked.live[asked.row], asked.position
        after = position - next_blank(work.canvas)[row]  # how far ahead of the next token
        span, options = work.spans[0], replace(work.options, hook=None, constraint=None)
        dice = Dice(work.key, span.start).at(row, position - span.start, work.clock[row] + after, TOKEN)
        logits = options.sharpen(forbid(options.meaning(asked, reply.logits), work.canvas.mask))
        tokens = inverse_cdf(logits, dice)
        for one in row.unique().tolist():
            drafts[one] = tokens[row == one]
        return self.process.remember(state, asked, reply, known), drafts


@dataclass(frozen=True)
class DraftedWork:
    """Rows being continued, what is proposed for them, and what both networks remember."""

    work: Work
    memories: tuple[Memory | None, ...]
    drafts: tuple[Int[Tensor, " _"], ...]
    drafter: Any  # its state
    start: int = 0  # position of the window that was read


@dataclass(frozen=True)
class Drafted(OverMasked):
    """Autoregressive sampling whose passes check proposals."""

    name: ClassVar[str] = "drafted"
    masked: Masked
    drafter: Drafter

    @property
    def inner(self) -> Masked:
        return self.masked

    def begin(self, canvas: Canvas, *, seed: int = 0, ids: Int[Tensor, " b"] | None = None) -> DraftedWork:
        check_prompts(canvas)
        work = self.inner.begin(canvas, seed=seed, ids=ids)
        own = self.drafter.process.begin(canvas, seed=seed, ids=ids)
        return self.drafting(DraftedWork(work, (None,) * len(canvas.tokens), (), own))

    def drafting(self, state: DraftedWork) -> DraftedWork:
        """The state with new proposals."""
        if state.work.done:
            return state
        own, drafts = self.drafter.proposals(state.drafter, state.work)
        span, room = state.work.spans[0], state.work.canvas.hidden
        left = (room[:, span.first : span.last].sum(1) - 1).clamp(min=0).tolist()  # the last token needs no proposal
        return replace(state, drafter=own, drafts=tuple(d[:n] for d, n in zip(drafts, left, strict=True)))

    def ask(self, state: DraftedWork) -> Ask | None:
        asked = self.inner.ask(state.work)
        if asked is None:
            return None
        passes, rows, width = [], [], asked.tokens.shape[1]
        for i, row in enumerate(asked.live.tolist()):
            first = int(asked.view.hidden[i].int().argmax())
            memory = self.memory(state, asked, row)
            text = torch.cat([asked.tokens[i, memory.filled : first], state.drafts[row]])
            n = len(state.drafts[row]) + 1
            last = torch.arange(len(text) - n, len(text), device=text.device)
            passes.append(Pass(text[None], Causal(), memory=memory, wanted=last))
            rows.append(i * width + first + torch.arange(n, device=text.device))
        return replace(asked, rows=torch.cat(rows), passes=tuple(passes))

    def memory(self, state: DraftedWork, asked: Ask, row: int) -> Memory:
        """The network's memory of a row; empty in a new window."""
        old = state.memories[row] if state.start == asked.start else None
        return old or Empty(asked.tokens.shape[1])

    def commit(self, state: DraftedWork, asked: Ask, answer: NetworkAnswer) -> tuple[DraftedWork, Committed]:
        work, span, brought = state.work, state.work.spans[0], list[Committed]()
        first = next_blank(work.canvas)
        begins = torch.zeros_like(first).index_put((asked.live,), starts(asked))
        going = asked.live
        while len(going) and work.spans[:1] == (span,):
            one = ask(work, among=going)
            assert one is not None
            row, position = one.live[one.row], one.position
            work, got = commit(work, one, answer.logits[begins[row] + position - first[row]])
            brought.append(got)
            going = torch.tensor([r for r in going.tolist() if agree(work.canvas, state.drafts[r], r, int(first[r]))])
        memories = list(state.memories)
        for i, row in enumerate(asked.live.tolist()):
            memories[row] = self.trim(answer.memories[i], work.canvas.tokens[row, asked.start :], asked.passes[i])
        after = replace(state, work=work, memories=tuple(memories), start=asked.start)
        return self.drafting(after), join_commits(brought)

    def trim(self, memory: Memory | None, text: Int[Tensor, " w"], read: Pass) -> Memory:
        """The memory up to the first proposal that is not in the text."""
        assert isinstance(memory, KeyValues)
        start, tokens = memory.filled - read.x.shape[1], read.x[0]
        same = (text[start : memory.filled] == tokens).int().cumprod(0)
        return memory.until(start + int(same.sum()))


def next_blank(canvas: Canvas) -> Int[Tensor, " b"]:
    """The first blank of each row; 0 in a finished row."""
    return canvas.hidden.int().argmax(1)


def starts(asked: Ask) -> Int[Tensor, " b"]:
    """Where the logits of each row begin in the answer."""
    counts = torch.bincount(asked.row, minlength=len(asked.live))
    return counts.cumsum(0) - counts


def agree(canvas: Canvas, drafts: Int[Tensor, " k"], row: int, first: int) -> bool:
    """Whether the next token of a row has logits: what was drawn since `first` is what was proposed."""
    hidden = canvas.hidden[row]
    n = int(hidden.int().argmax()) - first
    return (
        bool(hidden.any())
        and 0 <= n <= len(drafts)
        and bool((canvas.tokens[row, first : first + n] == drafts[:n]).all())
    )


def join_commits(brought: list[Committed]) -> Committed:
    """What several draws from one call have brought, tokens that took no call of their own at the end."""
    drawn, after = list[list[Tensor]](), list[list[Tensor]]()
    for one in brought:
        n = 0 if one.likely is None else len(one.likely)
        values = (one.rows, one.tokens, one.log_probs)
        drawn.append([value[:n] for value in values])
        after.append([value[n:] for value in values])
    rows, tokens, log_probs = (torch.cat(parts) for parts in zip(*drawn, *after, strict=True))
    return Committed(rows, tokens, log_probs, torch.cat([one.likely for one in brought if one.likely is not None]))


def with_drafter(process: Process, model: Model, drafter: Model, drafts: int) -> Drafted:
    """A process of an autoregressive model whose passes check the proposals of another one."""
    if not (isinstance(process, AutoregressiveProcess) and process.cached and model.spec.abilities.positions):
        raise UserError(
            "drafts are checked by an autoregressive network with attention, such as stories-ar; this one is a "
            f"{model.spec.name} of the objective {model.objective.name}: leave the drafter out."
        )
    own, other = model.tokenizer, drafter.tokenizer
    if drafter.mask != model.mask or (own and other and own.fingerprint != other.fingerprint):
        raise UserError(
            f"the drafter {drafter.folder} has another tokenizer than the model: its tokens mean other text."
        )
    kind = process_for(frozenset({"masks"}), drafter.objective.facts.gives)
    proposing = kind and kind.of(policy=NextBlanks(count=drafts), options=LogitOptions(), windows=None, model=drafter)
    if not isinstance(proposing, Remembering):
        raise UserError(
            f"the drafter {drafter.folder} has the objective {drafter.objective.name}, which proposes no tokens: "
            "give a model of any-order, one-stream, block or mdlm."
        )
    return Drafted(process.inner, Drafter(proposing, drafter.network))
