"""One tick: the questions of many works in one pass through the network, and their answers taken apart again.

A work's random numbers are its own and padding is shown to nobody, so what a work becomes does not depend on what
else is in the tick, but for the last bits of float arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.rows import forbid, rows_where
from unmask.sampling.shape import Ask
from unmask.sampling.step import Work, ask, commit, look_at

LOGITS = 2**26  # numbers that the head makes at a time: 256 MB


@runtime_checkable
class Halves(Protocol):
    """A network cut between trunk and head: `Transformer`."""

    def trunk(self, tokens: Tensor, sigma: Tensor, *, rows: Tensor, lengths: Tensor | None) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Tokens:
    """Tokens at flat positions over a work's canvas, with the model's probability of each."""

    rows: list[int]
    ids: list[int]
    probs: list[float]


@dataclass(frozen=True)
class Turn:
    """What one tick made of a work."""

    work: Work
    brought: Tokens
    draft: Tokens | None = None  # the likeliest token at every position still hidden, if it was asked for


@dataclass(frozen=True)
class Question:
    work: Work
    asked: Ask  # as the work's policy asks
    rows: Int[Tensor, " n"]  # what the network is asked: these, or all that is hidden where a draft is wanted
    draft: bool


def question(work: Work, draft: bool) -> Question:
    """The next question of a work that has one."""
    asked = ask(work)
    if asked is None:
        raise ValueError("a finished work asks nothing")
    rows = rows_where(look_at(work)[0].hidden) if draft else asked.rows
    return Question(work, asked, rows, draft)


@torch.inference_mode()
def advance(network: Halves, works: Sequence[Work], *, drafts: Sequence[bool], vocab: int) -> list[Turn | Exception]:
    """Every work after one more network call. One that fails does so alone; its place holds the exception."""
    questions = [question(work, draft) for work, draft in zip(works, drafts, strict=True)]
    hidden = together(network, questions)
    turns: list[Turn | Exception] = []
    for some, states in in_portions(questions, hidden, vocab=vocab):
        answers = network.head(torch.cat(states)).split([len(state) for state in states])
        turns += [taken(one, logits) for one, logits in zip(some, answers, strict=True)]
    return turns


def together(network: Halves, questions: Sequence[Question]) -> tuple[Float[Tensor, "n d"], ...]:
    """The hidden states that each question asks for, from one pass over all rows, padded to the widest."""
    width = max(one.asked.tokens.shape[1] for one in questions)
    tokens, sigmas, rows, lengths = [], [], [], []
    first = 0
    for one in questions:
        count, own = one.asked.tokens.shape
        tokens.append(torch.nn.functional.pad(one.asked.tokens, (0, width - own), value=one.work.canvas.mask))
        sigmas.append(one.asked.sigma)
        rows.append((first + one.rows // own) * width + one.rows % own)
        lengths.append(torch.full_like(one.asked.live, own) if one.asked.lengths is None else one.asked.lengths)
        first += count
    reach = torch.cat(lengths)
    padded = bool((reach < width).any())
    hidden = network.trunk(
        torch.cat(tokens), torch.cat(sigmas).float(), rows=torch.cat(rows), lengths=reach if padded else None
    )
    return hidden.split([len(one.rows) for one in questions])


def in_portions(
    questions: Sequence[Question], hidden: Sequence[Tensor], *, vocab: int
) -> list[tuple[list[Question], list[Tensor]]]:
    """Neighbours whose logits fit into memory together; one that is too large stands alone."""
    portions: list[tuple[list[Question], list[Tensor]]] = []
    room = 0
    for one, states in zip(questions, hidden, strict=True):
        if not portions or room < len(states) * vocab:
            portions.append(([], []))
            room = LOGITS
        portions[-1][0].append(one)
        portions[-1][1].append(states)
        room -= len(states) * vocab
    return portions


def taken(one: Question, logits: Float[Tensor, "n v"]) -> Turn | Exception:
    """A work after its answer, or what went wrong."""
    try:
        places = torch.searchsorted(one.rows, one.asked.rows) if one.draft else slice(None)
        work, brought = commit(one.work, one.asked, logits[places])
        found = Tokens(brought.rows.tolist(), brought.tokens.tolist(), brought.log_probs.exp().tolist())
        return Turn(work, found, drafted(one, logits, set(found.rows)) if one.draft else None)
    except Exception as error:  # this work's own mistake, which must not stop the others
        return error


def drafted(one: Question, logits: Float[Tensor, "n v"], done: set[int]) -> Tokens:
    """What the model would say now at every position that is left."""
    wide = replace(one.asked, rows=one.rows)
    log_p = forbid(one.work.shape.meaning(wide, logits), one.work.canvas.mask).log_softmax(-1)
    best = log_p.max(-1)
    at = (wide.live[wide.row] * one.work.canvas.tokens.shape[1] + wide.position).tolist()
    left = [i for i, place in enumerate(at) if place not in done]
    ids, probs = best.indices.tolist(), best.values.exp().tolist()
    return Tokens([at[i] for i in left], [ids[i] for i in left], [probs[i] for i in left])
