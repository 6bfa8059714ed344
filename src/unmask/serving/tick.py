"""One tick: the questions of many requests in one forward pass, and their answers split again.

Works of masked diffusion are joined. Any other process is `Running`: it calls the network by itself, with its own
memory, or, if it fills blocks, together with all others that do, each row with its memory. Each work has its own
random numbers, and no position sees padding, so the result of a work does not depend on the other works of the tick,
except for the last bits of float arithmetic.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.rows import forbid, rows_where
from unmask.sampling.guidance import ClassifierFree
from unmask.sampling.masked import Masked, Work, ask, commit, view_of, within
from unmask.sampling.process import Answer, Ask, Committed, Process, answer, answers
from unmask.serving.batch import groups, join, passes, split_work, width
from unmask.text.prompt.canvas import Canvas

Made = TypeVar("Made")

LOGITS = 2**25  # numbers that the head computes at a time: 128 MB
APART = 32  # padded positions that cost a CPU as much as one more pass: 17 to 35 were measured for `stories`

Counted = Callable[[int, int], None]  # told the positions of a pass, and how many of them are padding


def uncounted(positions: int, padded: int) -> None:
    """Nobody counts."""


@runtime_checkable
class Halves(Protocol):
    """A network cut between trunk and head: a `Backbone`."""

    def trunk(self, tokens: Tensor, sigma: Tensor, *, rows: Tensor, lengths: Tensor | None) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Running:
    """Rows sampled by a process other than plain masked diffusion."""

    process: Process
    state: Any

    @property
    def canvas(self) -> Canvas:
        return self.process.canvas(self.state)

    @property
    def done(self) -> bool:
        return self.process.done(self.state)


Job = Work | Running


def begun(process: Process, state: Any) -> Job:
    """A new request in the engine's form."""
    return state if isinstance(process, Masked) else Running(process, state)


Alternatives = list[tuple[int, float]]  # tokens and their log-probabilities, the most likely first


@dataclass(frozen=True)
class Tokens:
    """Tokens at flat positions over a work's canvas, with the model's log-probability of each."""

    rows: list[int]
    ids: list[int]
    log_probs: list[float]
    likeliest: list[Alternatives]  # at each position, on request; else empty


@dataclass(frozen=True)
class Turn:
    """The result of one tick for a work."""

    work: Job
    brought: Tokens
    masked: list[int] = field(default_factory=list)  # flat positions hidden again after the drawn tokens were set
    draft: Tokens | None = None  # the most likely token at every position still hidden, on request


@dataclass(frozen=True)
class Question:
    """The joint question of works with the same policy and settings."""

    works: list[Work]
    joined: Work
    asked: Ask  # the question of the works' policy
    rows: Int[Tensor, " n"]  # positions whose logits are computed: these, or all hidden ones if a draft is wanted
    draft: bool
    top: int = 0  # alternatives to each token: the most that one of the works wants

    @property
    def shown(self) -> list[Int[Tensor, "b w"]]:
        """The network's input: the rows, and for guidance the same rows again without the given text."""
        tokens, frozen = self.asked.tokens, self.asked.frozen
        if passes(self.joined) == 1:
            return [tokens]
        assert frozen is not None
        return [tokens, tokens.masked_fill(frozen, self.joined.canvas.mask)]


def question(works: list[Work], draft: bool, top: int = 0) -> Question:
    """The joint next question of unfinished works."""
    joined = join(works)
    asked = ask(joined)
    if asked is None:
        raise ValueError("a finished work asks nothing")
    rows = rows_where(view_of(joined)[0].hidden) if draft else asked.rows
    return Question(works, joined, asked, rows, draft, top)


@torch.inference_mode()
def advance(
    network: Halves,
    jobs: Sequence[Job],
    *,
    drafts: Sequence[bool],
    vocab: int,
    tops: Sequence[int] = (),
    counted: Counted = uncounted,
) -> list[Turn | Exception]:
    """Every job after one more network call. A failure affects one job only; its entry is the exception.

    drafts   which jobs also get the most likely token at every position that stays hidden
    tops     how many alternatives to each token a job gets at least; none: 0
    counted  is told the positions of each joint pass
    """
    tops = tops or [0] * len(jobs)
    joint = {i: work for i, job in enumerate(jobs) if (work := joinable(job)) is not None}
    if len(joint) == 1 and not any(isinstance(jobs[i], Work) for i in joint):
        joint = {}  # nobody to join: its own memory serves better
    others = {i: job for i, job in enumerate(jobs) if i not in joint and isinstance(job, Running)}
    turns = by_themselves(network, others, tops)
    own_drafts, own_tops = [drafts[i] for i in joint], [tops[i] for i in joint]
    works = list(joint.values())
    found = jointly(network, works, drafts=own_drafts, tops=own_tops, vocab=vocab, counted=counted) if works else []
    for i, turn in zip(joint, found, strict=True):
        turns[i] = turn if isinstance(turn, Exception) else replace(turn, work=rejoined(jobs[i], turn.work))
    return [turns[i] for i in range(len(jobs))]


def joinable(job: Job) -> Work | None:
    """A job as a work of masked diffusion, where it can be joined with others."""
    return job if isinstance(job, Work) else job.process.joinable(job.state)


def rejoined(job: Job, work: Job) -> Job:
    """A job after its work was advanced with others."""
    return work if isinstance(job, Work) else replace(job, state=job.process.rejoined(job.state, work))


def by_themselves(network: Halves, jobs: Mapping[int, Running], tops: Sequence[int]) -> dict[int, Turn | Exception]:
    """Processes after one more network call: each its own, but one for all that fill blocks, at whatever block."""
    turns: dict[int, Turn | Exception] = {}
    asked: dict[int, Ask] = {}
    for i, job in jobs.items():
        question = kept_apart(partial(job.process.ask, job.state))
        if question is None:
            question = ValueError("a finished process asks nothing")
        if isinstance(question, Exception):
            turns[i] = question
        else:
            asked[i] = question
    blocks = [i for i in asked if asked[i].pieces]
    together = kept_apart(lambda: answers(network, [asked[i] for i in blocks])) if blocks else []
    known = {} if isinstance(together, Exception) else dict(zip(blocks, together, strict=True))
    for i, question in asked.items():
        turns[i] = kept_apart(partial(one_turn, network, jobs[i], question, known.get(i), tops[i]))
    return turns


def kept_apart(do: Callable[[], Made]) -> Made | Exception:
    """The result, or the error: that of one request must not stop the others."""
    try:
        return do()
    except Exception as error:
        return error


def one_turn(network: Halves, job: Running, asked: Ask, known: Answer | None, top: int) -> Turn:
    """A process after the answer to its question; None: the network is asked now."""
    after, brought = job.process.commit(job.state, asked, answer(network, asked) if known is None else known)
    now = Running(job.process, after)
    return Turn(now, tokens_of(brought, top), hidden_again(job.canvas, now.canvas, brought))


def tokens_of(brought: Committed, top: int) -> Tokens:
    """What was committed, with the `top` most likely tokens at each position."""
    likeliest: list[Alternatives] = []
    if top and brought.likely is not None:
        best = brought.likely.topk(min(top, brought.likely.shape[-1]), -1)
        both = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        likeliest = [list(zip(ids, values, strict=True)) for ids, values in both]
        likeliest += [[] for _ in brought.rows[len(likeliest) :]]  # tokens that took no call have no alternatives
    return Tokens(brought.rows.tolist(), brought.tokens.tolist(), brought.log_probs.tolist(), likeliest)


def jointly(
    network: Halves,
    works: Sequence[Work],
    *,
    drafts: Sequence[bool],
    tops: Sequence[int],
    vocab: int,
    counted: Counted,
) -> list[Turn | Exception]:
    """Works of masked diffusion after one forward pass for all of them, or one for each of some lengths."""
    members = groups(works, drafts, most=LOGITS // vocab)
    questions = [
        question([works[i] for i in group], drafts[group[0]], max(tops[i] for i in group)) for group in members
    ]
    hidden = states_of(network, questions, counted)
    turns: dict[int, Turn | Exception] = {}
    for some, states in in_portions(list(zip(members, questions, strict=True)), hidden, vocab=vocab):
        answers = network.head(torch.cat(states)).split([len(state) for state in states])
        for (group, one), logits in zip(some, answers, strict=True):
            turns.update(zip(group, taken(one, logits), strict=True))
    return [turns[i] for i in range(len(works))]


def states_of(
    network: Halves, questions: Sequence[Question], counted: Counted = uncounted
) -> tuple[Float[Tensor, "n d"], ...]:
    """The hidden states for each question, from one forward pass, or a few with rows of similar lengths."""
    most = max(one.asked.tokens.shape[1] for one in questions)
    tokens, sigmas, rows, lengths = [], [], [], []
    first = 0
    for one in questions:
        for shown in one.shown:
            count, own = shown.shape
            tokens.append(torch.nn.functional.pad(shown, (0, most - own), value=one.joined.canvas.mask))
            sigmas.append(one.asked.sigma)
            rows.append((first + one.rows // own) * most + one.rows % own)
            lengths.append(torch.full_like(one.asked.live, own) if one.asked.lengths is None else one.asked.lengths)
            first += count
    reach, at = torch.cat(lengths), torch.cat(rows)
    row, column = at // most, at % most
    hidden: list[Tensor] = []
    order: list[Tensor] = []
    every, sigma = torch.cat(tokens), torch.cat(sigmas).float()
    for some in by_length(reach, apart=APART if reach.device.type == "cpu" else every.numel()):
        ends = reach[some]
        wide = int(ends.max())
        place = torch.full_like(reach, -1).index_put((some,), torch.arange(len(some), device=some.device))
        order.append((place[row] >= 0).nonzero().squeeze(1))
        asked = place[row[order[-1]]] * wide + column[order[-1]]
        padded = len(some) * wide - int(ends.sum())
        hidden.append(network.trunk(every[some, :wide], sigma[some], rows=asked, lengths=ends if padded else None))
        counted(len(some) * wide, padded)
    whole = torch.cat(hidden)[torch.cat(order).argsort()] if len(hidden) > 1 else hidden[0]
    return whole.split([len(one.rows) * passes(one.joined) for one in questions])


def by_length(reach: Int[Tensor, " b"], *, apart: int) -> list[Int[Tensor, " k"]]:
    """The rows of each pass: those of similar lengths, if a further pass spares more than `apart` positions."""
    lengths = reach.tolist()
    left = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    found: list[list[int]] = []
    for number, i in enumerate(left):
        if not found or (lengths[found[-1][0]] - lengths[i]) * (len(left) - number) > apart:
            found.append([])
        found[-1].append(i)
    return [torch.tensor(sorted(some), device=reach.device) for some in found]


def in_portions(
    questions: Sequence[tuple[list[int], Question]], hidden: Sequence[Tensor], *, vocab: int
) -> list[tuple[list[tuple[list[int], Question]], list[Tensor]]]:
    """Groups of adjacent questions whose logits fit into memory together; one that is too large is its own group."""
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


def taken(one: Question, logits: Float[Tensor, "m v"]) -> list[Turn | Exception]:
    """Works after their answer. If they fail together they are retried one by one, so that only faulty ones fail."""
    try:
        seeing, *blind = logits.chunk(passes(one.joined))
        work = guided(one, blind[0]) if blind else one.joined
        after, brought = commit(work, one.asked, seeing[places(one, one.asked.rows)])
        found = tokens_of(brought, one.top)
        masked = again(one, after, brought)
        draft = drafted(one, work, seeing, set(found.rows)) if one.draft else None
    except Exception as error:  # an error of one of them must not stop the others
        if len(one.works) == 1:
            return [error]
        return [turn for work, own in alone(one, logits) for turn in taken(question([work], one.draft, one.top), own)]
    each = zip(
        split_work(replace(after, options=one.joined.options), one.works),
        tokens_by_work(found, one),
        owned(masked, one),
        tokens_by_work(draft, one) if draft is not None else [None] * len(one.works),
        strict=True,
    )
    return [Turn(work, tokens, hidden, lean) for work, tokens, hidden, lean in each]


def places(one: Question, rows: Int[Tensor, " k"]) -> Tensor | slice:
    """The indices of some rows among all rows of the question."""
    return torch.searchsorted(one.rows, rows) if one.draft else slice(None)


def guided(one: Question, blind: Float[Tensor, "n v"]) -> Work:
    """The joined work; its guidance uses the given logits instead of a further network call."""
    hook = one.joined.options.hook
    assert isinstance(hook, ClassifierFree)

    def known(tokens: Tensor, sigma: Tensor, rows: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        return blind[places(one, rows)]

    return replace(one.joined, options=replace(one.joined.options, hook=ClassifierFree(known, hook.weight)))


def again(one: Question, after: Work, brought: Committed) -> list[int]:
    """Flat positions that had a token before or during this call and are hidden now."""
    return hidden_again(one.joined.canvas, after.canvas, brought) if one.joined.policy.revises else []


def hidden_again(before: Canvas, after: Canvas, brought: Committed) -> list[int]:
    """Flat positions that had a token before or during this call and are hidden now."""
    held = ~before.hidden.flatten().index_fill(0, brought.rows, False)
    return rows_where(after.hidden & held.view_as(after.hidden)).tolist()


def alone(one: Question, logits: Float[Tensor, "m v"]) -> list[tuple[Work, Tensor]]:
    """Each work of a question with its part of the answer."""
    row = one.asked.live[one.rows // one.asked.tokens.shape[1]]
    ends = torch.tensor([len(work.key) for work in one.works], device=row.device).cumsum(0)
    counts = torch.bincount(torch.searchsorted(ends, row, right=True), minlength=len(ends)).tolist()
    parts = zip(*(some.split(counts) for some in logits.chunk(passes(one.joined))), strict=True)
    return [(work, torch.cat(both)) for work, both in zip(one.works, parts, strict=True)]


def tokens_by_work(tokens: Tokens, one: Question) -> list[Tokens]:
    """Tokens at flat positions over the joined canvas, split by work."""
    found = [Tokens([], [], [], []) for _ in one.works]
    for number, (i, at) in enumerate(own_places(tokens.rows, one)):
        found[i].rows.append(at)
        found[i].ids.append(tokens.ids[number])
        found[i].log_probs.append(tokens.log_probs[number])
        if tokens.likeliest:
            found[i].likeliest.append(tokens.likeliest[number])
    return found


def owned(rows: list[int], one: Question) -> list[list[int]]:
    """Flat positions over the joined canvas, split by work."""
    found: list[list[int]] = [[] for _ in one.works]
    for i, at in own_places(rows, one):
        found[i].append(at)
    return found


def own_places(rows: list[int], one: Question) -> Iterator[tuple[int, int]]:
    """The work of each flat position over the joined canvas, and its flat position there."""
    most = width(one.joined)
    owner = [(i, row * width(work)) for i, work in enumerate(one.works) for row in range(len(work.key))]
    for at in rows:
        i, start = owner[at // most]
        yield i, start + at % most


def drafted(one: Question, work: Work, logits: Float[Tensor, "n v"], done: set[int]) -> Tokens:
    """The most likely token at every position that is still hidden."""
    wide = replace(one.asked, rows=one.rows)
    log_p = forbid(within(work, wide, one.rows, work.options.meaning(wide, logits)), work.canvas.mask).log_softmax(-1)
    best = log_p.max(-1)
    at = (wide.live[wide.row] * width(one.joined) + wide.position).tolist()
    left = [i for i, place in enumerate(at) if place not in done]
    ids, log_probs = best.indices.tolist(), best.values.tolist()
    return Tokens([at[i] for i in left], [ids[i] for i in left], [log_probs[i] for i in left], [])
