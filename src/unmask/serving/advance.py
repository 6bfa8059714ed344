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
from unmask.serving.joining import groups, join, part, width

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
    """What works that are drawn in the same way ask together."""

    works: list[Work]
    joined: Work
    asked: Ask  # as the works' policy asks
    rows: Int[Tensor, " n"]  # what the network is asked: these, or all that is hidden where a draft is wanted
    draft: bool


def question(works: list[Work], draft: bool) -> Question:
    """The next question of works that each have one."""
    joined = join(works)
    asked = ask(joined)
    if asked is None:
        raise ValueError("a finished work asks nothing")
    rows = rows_where(look_at(joined)[0].hidden) if draft else asked.rows
    return Question(works, joined, asked, rows, draft)


@torch.inference_mode()
def advance(network: Halves, works: Sequence[Work], *, drafts: Sequence[bool], vocab: int) -> list[Turn | Exception]:
    """Every work after one more network call. One that fails does so alone; its place holds the exception."""
    members = groups(works, drafts, most=LOGITS // vocab)
    questions = [question([works[i] for i in group], drafts[group[0]]) for group in members]
    hidden = together(network, questions)
    turns: dict[int, Turn | Exception] = {}
    for some, states in in_portions(list(zip(members, questions, strict=True)), hidden, vocab=vocab):
        answers = network.head(torch.cat(states)).split([len(state) for state in states])
        for (group, one), logits in zip(some, answers, strict=True):
            turns.update(zip(group, taken(one, logits), strict=True))
    return [turns[i] for i in range(len(works))]


def together(network: Halves, questions: Sequence[Question]) -> tuple[Float[Tensor, "n d"], ...]:
    """The hidden states that each question asks for, from one pass over all rows, padded to the widest."""
    most = max(one.asked.tokens.shape[1] for one in questions)
    tokens, sigmas, rows, lengths = [], [], [], []
    first = 0
    for one in questions:
        count, own = one.asked.tokens.shape
        tokens.append(torch.nn.functional.pad(one.asked.tokens, (0, most - own), value=one.joined.canvas.mask))
        sigmas.append(one.asked.sigma)
        rows.append((first + one.rows // own) * most + one.rows % own)
        lengths.append(torch.full_like(one.asked.live, own) if one.asked.lengths is None else one.asked.lengths)
        first += count
    reach = torch.cat(lengths)
    padded = bool((reach < most).any())
    hidden = network.trunk(
        torch.cat(tokens), torch.cat(sigmas).float(), rows=torch.cat(rows), lengths=reach if padded else None
    )
    return hidden.split([len(one.rows) for one in questions])


def in_portions(
    questions: Sequence[tuple[list[int], Question]], hidden: Sequence[Tensor], *, vocab: int
) -> list[tuple[list[tuple[list[int], Question]], list[Tensor]]]:
    """Neighbours whose logits fit into memory together; one that is too large stands alone."""
    portions: list[tuple[list[tuple[list[int], Question]], list[Tensor]]] = []
    room = 0
    for one, states in zip(questions, hidden, strict=True):
        if not portions or room < len(states) * vocab:
            portions.append(([], []))
            room = LOGITS
        portions[-1][0].append(one)
        portions[-1][1].append(states)
        room -= len(states) * vocab
    return portions


def taken(one: Question, logits: Float[Tensor, "n v"]) -> list[Turn | Exception]:
    """Works after their answer. If they fail together they are tried one by one, so that only the culprits do."""
    try:
        places = torch.searchsorted(one.rows, one.asked.rows) if one.draft else slice(None)
        after, brought = commit(one.joined, one.asked, logits[places])
        found = Tokens(brought.rows.tolist(), brought.tokens.tolist(), brought.log_probs.exp().tolist())
        draft = drafted(one, logits, set(found.rows)) if one.draft else None
    except Exception as error:  # the mistake of one of them, which must not stop the others
        if len(one.works) == 1:
            return [error]
        return [turn for work, part in alone(one, logits) for turn in taken(question([work], one.draft), part)]
    each = zip(
        part(after, one.works),
        shared(found, one),
        shared(draft, one) if draft is not None else [None] * len(one.works),
        strict=True,
    )
    return [Turn(work, tokens, lean) for work, tokens, lean in each]


def alone(one: Question, logits: Float[Tensor, "n v"]) -> list[tuple[Work, Tensor]]:
    """Each work of a question with its part of the answer."""
    row = one.asked.live[one.rows // one.asked.tokens.shape[1]]
    ends = torch.tensor([len(work.key) for work in one.works], device=row.device).cumsum(0)
    counts = torch.bincount(torch.searchsorted(ends, row, right=True), minlength=len(ends)).tolist()
    return list(zip(one.works, logits.split(counts), strict=True))


def shared(tokens: Tokens, one: Question) -> list[Tokens]:
    """Tokens at flat positions over the joined canvas, as each work's own."""
    most = width(one.joined)
    owner = [(i, row) for i, work in enumerate(one.works) for row in range(len(work.key))]
    found = [Tokens([], [], []) for _ in one.works]
    for at, id, prob in zip(tokens.rows, tokens.ids, tokens.probs, strict=True):
        i, row = owner[at // most]
        found[i].rows.append(row * width(one.works[i]) + at % most)
        found[i].ids.append(id)
        found[i].probs.append(prob)
    return found


def drafted(one: Question, logits: Float[Tensor, "n v"], done: set[int]) -> Tokens:
    """What the model would say now at every position that is left."""
    wide = replace(one.asked, rows=one.rows)
    log_p = forbid(one.joined.shape.meaning(wide, logits), one.joined.canvas.mask).log_softmax(-1)
    best = log_p.max(-1)
    at = (wide.live[wide.row] * width(one.joined) + wide.position).tolist()
    left = [i for i, place in enumerate(at) if place not in done]
    ids, probs = best.indices.tolist(), best.values.exp().tolist()
    return Tokens([at[i] for i in left], [ids[i] for i in left], [probs[i] for i in left])
