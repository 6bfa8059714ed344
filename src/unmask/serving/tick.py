"""One tick: the questions of all requests in one forward pass, and their answers split again.

A request is a process and its state, whatever the process is. Requests of masked diffusion with the same policy and
settings are drawn as one; every other request is drawn by itself. Each has its own random numbers, and no pass sees
another one: the result of a request does not depend on the others of the tick, up to the last bits of floats.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.rows import forbid, rows_where
from unmask.model.backbone import Reader
from unmask.model.passes.together import Counted, count_nothing, run_together
from unmask.model.passing import Pass, States
from unmask.sampling.guidance import ClassifierFree
from unmask.sampling.masked import Work, view_of, within
from unmask.sampling.process import Ask, Committed, NetworkAnswer, passes_of
from unmask.serving.batch import Job, groups, join, passes, split_work, width
from unmask.text.prompt.canvas import Canvas

Made = TypeVar("Made")

LOGITS = 2**25  # numbers that the head computes at a time: 128 MB


Alternatives = list[tuple[int, float]]  # tokens and their log-probabilities, the most likely first


@dataclass(frozen=True)
class Tokens:
    """Tokens at flat positions over a work's canvas, with the model's log-probability of each."""

    rows: list[int]
    ids: list[int]
    log_probs: list[float]
    likeliest: list[Alternatives]  # at each position, on request; else empty


@dataclass(frozen=True)
class EngineTurn:
    """The result of one tick for a request."""

    work: Job
    brought: Tokens
    masked: list[int] = field(default_factory=list)  # flat positions hidden again after the drawn tokens were set
    draft: Tokens | None = None  # the most likely token at every position still hidden, on request


@dataclass(frozen=True)
class Question:
    """The joint question of requests that are drawn as one."""

    jobs: list[Job]
    joined: Job
    asked: Ask  # the question of the joined request
    rows: Int[Tensor, " n"]  # positions whose logits are computed: these, or all hidden ones if a draft is wanted
    draft: bool
    top: int = 0  # alternatives to each token: the most that one of the requests wants

    def passes(self, network: Reader) -> list[Pass]:
        """What the network reads: for guidance also the rows without the given text."""
        asked, frozen = replace(self.asked, rows=self.rows), self.asked.frozen
        if passes(self.joined) == 1:
            return list(passes_of(network.spec, asked))
        assert frozen is not None
        blind = replace(asked, tokens=asked.tokens.masked_fill(frozen, self.joined.canvas.mask))
        return [p for one in (asked, blind) for p in passes_of(network.spec, one)]


def question(jobs: list[Job], draft: bool, top: int = 0) -> Question:
    """The joint next question of unfinished requests."""
    joined = join(jobs)
    asked = joined.process.ask(joined.state)
    if asked is None:
        raise ValueError("a finished request asks nothing")
    drafts = draft and isinstance(joined.state, Work)
    rows = rows_where(view_of(joined.state)[0].hidden) if drafts else asked.rows
    return Question(jobs, joined, asked, rows, drafts, top)


@torch.inference_mode()
def advance(
    network: Reader,
    jobs: Sequence[Job],
    *,
    drafts: Sequence[bool],
    vocab: int,
    tops: Sequence[int] = (),
    counted: Counted = count_nothing,
) -> list[EngineTurn | Exception]:
    """Every request after one more network call. A failure affects one only; its entry is the exception.

    drafts   which of them also get the most likely token at every position that stays hidden: masked diffusion alone
    tops     how many alternatives to each token a request gets at least; none: 0
    counted  is given the positions of each pass
    """
    tops = tops or [0] * len(jobs)
    turns: dict[int, EngineTurn | Exception] = {}
    asking: list[tuple[list[int], Question]] = []
    for group in groups(jobs, drafts, most=LOGITS // vocab):
        asked = try_to(partial(question, [jobs[i] for i in group], drafts[group[0]], max(tops[i] for i in group)))
        if isinstance(asked, Exception):
            turns.update(dict.fromkeys(group, asked))
        else:
            asking.append((group, asked))
    read = [one.passes(network) for _, one in asking]
    states = run_together(network, [p for own in read for p in own], counted) if asking else []
    members = []
    for (group, one), passes_read in zip(asking, read, strict=True):
        members.append((group, one, states[: len(passes_read)]))
        states = states[len(passes_read) :]
    for some in in_portions(members, vocab=vocab):
        for (group, one, own), output in zip(some, outputs(network, some), strict=True):
            memories = tuple(state.memory for state in own) if one.asked.passes else ()
            turns.update(zip(group, take_answer(one, NetworkAnswer(output, memories)), strict=True))
    return [turns[i] for i in range(len(jobs))]


Members = list[tuple[list[int], Question, list[States]]]


def in_portions(members: Members, *, vocab: int) -> list[Members]:
    """Groups of adjacent questions whose logits fit into memory together; one that is too large is its own group."""
    portions: list[Members] = []
    room = 0
    for one in members:
        size = sum(state.hidden[..., 0].numel() for state in one[2]) * vocab
        if not portions or room < size:
            portions.append([])
            room = LOGITS
        portions[-1].append(one)
        room -= size
    return portions


def outputs(network: Reader, some: Members) -> list[Tensor]:
    """The logits, or hidden states, that answer some questions."""
    hidden = [torch.cat([state.hidden.flatten(0, -2) for state in own]) for _, _, own in some]
    heads = [i for i, (_, one, _) in enumerate(some) if not one.asked.states]
    logits = (
        network.head(torch.cat([hidden[i] for i in heads])).split([len(hidden[i]) for i in heads]) if heads else ()
    )
    by_head = dict(zip(heads, logits, strict=True))
    return [by_head.get(i, own) for i, own in enumerate(hidden)]


def try_to(do: Callable[[], Made]) -> Made | Exception:
    """The result, or the error: that of one request must not stop the others."""
    try:
        return do()
    except Exception as error:
        return error


def tokens_of(brought: Committed, top: int) -> Tokens:
    """What was committed, with the `top` most likely tokens at each position."""
    likeliest: list[Alternatives] = []
    if top and brought.likely is not None:
        best = brought.likely.topk(min(top, brought.likely.shape[-1]), -1)
        both = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        likeliest = [list(zip(ids, values, strict=True)) for ids, values in both]
        likeliest += [[] for _ in brought.rows[len(likeliest) :]]  # tokens that took no call have no alternatives
    return Tokens(brought.rows.tolist(), brought.tokens.tolist(), brought.log_probs.tolist(), likeliest)


def take_answer(one: Question, answer: NetworkAnswer) -> list[EngineTurn | Exception]:
    """Requests after their answer. If they fail together they are retried one by one: only faulty ones fail."""
    job, logits = one.joined, answer.logits
    try:
        seeing, *blind = logits.chunk(passes(job))
        guided = guide(one, blind[0]) if blind else job
        given = replace(answer, logits=seeing[places(one, one.asked.rows)])
        state, brought = guided.process.commit(guided.state, one.asked, given)
        after = Job(guided.process, state)
        drawn = tokens_of(brought, one.top)
        masked = [] if job.process.settled else hidden_again(job.canvas, after.canvas, brought)
        draft = draft_tokens(one, guided.state, seeing, set(drawn.rows)) if one.draft else None
    except Exception as error:  # an error of one of them must not stop the others
        if len(one.jobs) == 1:
            return [error]
        return [turn for job, own in alone(one, logits) for turn in take_answer(job, NetworkAnswer(own))]
    each = zip(
        split_work(after, one.jobs),
        tokens_by_work(drawn, one),
        positions_by_work(masked, one),
        tokens_by_work(draft, one) if draft is not None else [None] * len(one.jobs),
        strict=True,
    )
    return [EngineTurn(job, tokens, hidden, lean) for job, tokens, hidden, lean in each]


def places(one: Question, rows: Int[Tensor, " k"]) -> Tensor | slice:
    """The indices of some rows among all rows of the question."""
    return torch.searchsorted(one.rows, rows) if one.draft else slice(None)


def guide(one: Question, blind: Float[Tensor, "n v"]) -> Job:
    """The joined request; its guidance uses the given logits instead of a further network call."""
    work = one.joined.state
    hook = work.options.hook
    assert isinstance(hook, ClassifierFree)

    def known(tokens: Tensor, sigma: Tensor, rows: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        return blind[places(one, rows)]

    return replace(
        one.joined, state=replace(work, options=replace(work.options, hook=ClassifierFree(known, hook.weight)))
    )


def hidden_again(before: Canvas, after: Canvas, brought: Committed) -> list[int]:
    """Flat positions that had a token before or during this call and are hidden now."""
    held = ~before.hidden.flatten().index_fill(0, brought.rows, False)
    return rows_where(after.hidden & held.view_as(after.hidden)).tolist()


def alone(one: Question, logits: Float[Tensor, "m v"]) -> list[tuple[Question, Tensor]]:
    """Each request of a question, with its part of the answer."""
    row = one.asked.live[one.rows // one.asked.tokens.shape[1]]
    ends = torch.tensor([len(job.canvas.tokens) for job in one.jobs], device=row.device).cumsum(0)
    counts = torch.bincount(torch.searchsorted(ends, row, right=True), minlength=len(ends)).tolist()
    parts = zip(*(some.split(counts) for some in logits.chunk(passes(one.joined))), strict=True)
    return [(question([job], one.draft, one.top), torch.cat(both)) for job, both in zip(one.jobs, parts, strict=True)]


def tokens_by_work(tokens: Tokens, one: Question) -> list[Tokens]:
    """Tokens at flat positions over the joined canvas, split by work."""
    by_job = [Tokens([], [], [], []) for _ in one.jobs]
    for number, (i, at) in enumerate(own_places(tokens.rows, one)):
        by_job[i].rows.append(at)
        by_job[i].ids.append(tokens.ids[number])
        by_job[i].log_probs.append(tokens.log_probs[number])
        if tokens.likeliest:
            by_job[i].likeliest.append(tokens.likeliest[number])
    return by_job


def positions_by_work(rows: list[int], one: Question) -> list[list[int]]:
    """Flat positions over the joined canvas, split by work."""
    rows_of_job: list[list[int]] = [[] for _ in one.jobs]
    for i, at in own_places(rows, one):
        rows_of_job[i].append(at)
    return rows_of_job


def own_places(rows: list[int], one: Question) -> Iterator[tuple[int, int]]:
    """The work of each flat position over the joined canvas, and its flat position there."""
    most = width(one.joined)
    owner = [(i, row * width(job)) for i, job in enumerate(one.jobs) for row in range(len(job.canvas.tokens))]
    for at in rows:
        i, start = owner[at // most]
        yield i, start + at % most


def draft_tokens(one: Question, work: Work, logits: Float[Tensor, "n v"], done: set[int]) -> Tokens:
    """The most likely token at every position that is still hidden."""
    wide = replace(one.asked, rows=one.rows)
    log_p = forbid(within(work, wide, one.rows, work.options.meaning(wide, logits)), work.canvas.mask).log_softmax(-1)
    best = log_p.max(-1)
    at = (wide.live[wide.row] * width(one.joined) + wide.position).tolist()
    left = [i for i, place in enumerate(at) if place not in done]
    ids, log_probs = best.indices.tolist(), best.values.tolist()
    return Tokens([at[i] for i in left], [ids[i] for i in left], [log_probs[i] for i in left], [])
