"""One tick over many works gives each what it would get alone."""

from functools import partial

import pytest
import torch
from models import network

from unmask.errors import UserError
from unmask.model.passes import together
from unmask.model.passes.whole import logits_at
from unmask.sampling import autoregressive, masked
from unmask.sampling import process as processes
from unmask.sampling.guidance import ClassifierFree
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Masked, fill
from unmask.sampling.patterns.constraint import matching
from unmask.sampling.patterns.tokens import Words
from unmask.sampling.policies.remask import RULES, Remask
from unmask.sampling.policy import policy_of
from unmask.serving import tick as ticks
from unmask.serving.batch import Job
from unmask.serving.tick import EngineTurn, advance
from unmask.text.prompt.canvas import blank, of_rows

pytestmark = pytest.mark.slow

VOCAB, MASK = 30, 29
POLICIES = [
    policy_of("first-hitting"),
    policy_of("ancestral", steps=7),
    policy_of("groups", steps=4),
    policy_of("entropy"),
    policy_of("confidence", steps=5),
    policy_of("threshold"),
    policy_of("entropy-bound"),
    policy_of("klass"),
    policy_of("draw-then-keep", steps=6),
]


def begin(canvas, policy, **options):
    """A request of masked diffusion."""
    work = masked.begin(canvas, policy, **options)
    return Job(Masked(policy, options=work.options), work)


REMASKING = [Remask(rule, steps=9, eta=0.6) for rule in RULES]
LETTERS = Words(tuple(bytes([97 + i]) for i in range(VOCAB)), tuple(bytes([97 + i]) for i in range(VOCAB)))
PATTERN = matching("[a-m]*[n-z]+", LETTERS, ends=False)


def controlled(net):
    """Two works for each kind of remasking, plain, guided, constrained, and both."""
    made = []
    weak, strong = ClassifierFree(net, 0.5), ClassifierFree(net, 2.0)
    shapes = [
        LogitOptions(),
        LogitOptions(hook=weak),
        LogitOptions(hook=strong, temperature=0.7),
        LogitOptions(constraint=PATTERN),
        LogitOptions(constraint=PATTERN, hook=weak),
    ]
    for i in range(3 * len(shapes)):
        policy = REMASKING[1] if i % 3 else [*REMASKING, *POLICIES][i % (len(REMASKING) + 3)]
        rows = [[3, 1, *[MASK] * (5 + i % 4)], [*[MASK] * (3 + i % 3), 17]][: 1 + i % 2]
        made.append(begin(of_rows(rows, mask=MASK), policy, seed=i, options=shapes[i // 3]))
    return made


def works(net):
    """Two works for each policy and temperature, of different lengths, candidates and prompts."""
    made = []
    for i in range(2 * len(POLICIES)):
        policy, warmth = POLICIES[i // 2], 0.5 + i // 6 / 2
        rows = [[3, 1, *[MASK] * (3 + i // 2)], [*[MASK] * (2 + i // 2), 7]][: 1 + i % 2]
        made.append(
            begin(of_rows(rows, mask=MASK), policy, seed=i, options=LogitOptions(temperature=warmth, top_p=0.95))
        )
    return made


def alone(net, job, seed):
    *_, last = fill(partial(logits_at, net), job.canvas, job.state.policy, seed=seed, options=job.state.options)
    return last.canvas.tokens


def run(net, live, *, draft=False):
    """Tick until all is done; those who finish leave, and the others join two ticks late, one by one."""
    finished, waiting, running, calls = {}, list(enumerate(live))[3:], list(enumerate(live))[:3], 0
    while running or waiting:
        turns = advance(net, [work for _, work in running], drafts=[draft] * len(running), vocab=VOCAB)
        calls += 1
        assert all(isinstance(turn, EngineTurn) for turn in turns)
        running = [(i, turn.work) for (i, _), turn in zip(running, turns, strict=True)]
        finished |= {i: work.canvas.tokens for i, work in running if work.done}
        running = [(i, work) for i, work in running if not work.done]
        if waiting and (calls % 2 == 0 or not running):
            running += [waiting.pop(0) for _ in waiting[:2]]
    return finished


@pytest.mark.parametrize("conditioned", [False, True])
def test_works_of_all_kinds_that_come_and_go_each_become_what_they_would_alone(conditioned):
    net = network(VOCAB, cond=16 if conditioned else 0, time_conditioning=conditioned).freeze()
    live = works(net)
    found = run(net, live)
    assert len(found) == len(live)
    for i, work in enumerate(live):
        assert torch.equal(found[i], alone(net, work, seed=i)), POLICIES[i // 2].law


def test_works_of_different_lengths_share_a_pass_without_padding_and_become_what_they_would_alone():
    net = network(VOCAB).freeze()
    live = works(net)
    told = []
    turns = advance(net, live, drafts=[False] * len(live), vocab=VOCAB, counted=lambda *numbers: told.append(numbers))
    assert all(isinstance(turn, EngineTurn) for turn in turns)
    assert len(told) == 1, "one pass"
    assert sum(padded for _, padded in told) == 0
    real = [work.canvas.tokens.numel() if (own := work.canvas.lengths) is None else int(own.sum()) for work in live]
    assert sum(positions for positions, _ in told) == sum(real)
    found = run(net, live)
    for i, work in enumerate(live):
        assert torch.equal(found[i], alone(net, work, seed=i)), POLICIES[i // 2].law


def test_a_further_pass_must_spare_more_than_it_costs():
    reach = torch.tensor([10, 60, 12, 59, 10])
    assert [some.tolist() for some in together.by_length(reach, apart=32)] == [[1, 3], [0, 2, 4]]
    assert [some.tolist() for some in together.by_length(reach, apart=1000)] == [[0, 1, 2, 3, 4]]
    assert [some.tolist() for some in together.by_length(reach, apart=0)] == [[1], [3], [2], [0, 4]]


@pytest.mark.slow
def test_works_under_control_each_become_what_they_would_alone():
    net = network(VOCAB, cond=16, time_conditioning=True).freeze()
    live = controlled(net)
    found = run(net, live)
    assert len(found) == len(live)
    for i, work in enumerate(live):
        assert torch.equal(found[i], alone(net, work, seed=i)), (work.state.policy.law, work.state.options)


def test_guided_works_share_the_one_call_of_a_tick_with_two_rows_for_each_of_theirs():
    net = network(VOCAB).freeze()
    shown = []

    class Counted:
        spec, head = net.spec, net.head

        def run(self, p):
            shown.append(p.x)
            return net.run(p)

    def unasked(*arguments, **options):
        raise AssertionError("guidance asks the network by itself")

    hook = ClassifierFree(unasked, 2.0)
    made = [
        begin(
            of_rows([[4, *[MASK] * 5]] * 2, mask=MASK),
            policy_of("first-hitting"),
            seed=1,
            options=LogitOptions(hook=hook),
        ),
        begin(of_rows([[5, *[MASK] * 5]], mask=MASK), policy_of("entropy"), seed=2, options=LogitOptions(hook=hook)),
        begin(of_rows([[6, *[MASK] * 5]], mask=MASK), policy_of("first-hitting"), seed=3),
    ]
    turns = advance(Counted(), made, drafts=[True, False, False], vocab=VOCAB)
    assert all(isinstance(turn, EngineTurn) for turn in turns)
    (tokens,) = shown
    assert sorted(tokens[:, 0].tolist()) == sorted([4, 4, 5, 6, MASK, MASK, MASK])
    assert [turn.work.state.options.hook for turn in turns] == [hook, hook, None], (
        "the next tick is made the same way"
    )


def test_a_turn_tells_what_is_masked_again():
    net = network(VOCAB).freeze()
    work = begin(of_rows([[3, *[MASK] * 12]] * 2, mask=MASK), Remask("rescale", steps=10, eta=0.7), seed=4)
    tokens, again = work.canvas.tokens.clone().flatten(), 0
    while not work.done:
        (turn,) = advance(net, [work], drafts=[False], vocab=VOCAB)
        tokens[turn.brought.rows] = torch.tensor(turn.brought.ids)
        tokens[turn.masked] = MASK
        again += len(turn.masked)
        work = turn.work
        assert torch.equal(tokens, work.canvas.tokens.flatten())
    assert again > 5


@pytest.mark.parametrize("make", [works, pytest.param(controlled, marks=pytest.mark.slow)])
def test_a_draft_changes_nothing_that_is_drawn(make):
    net = network(VOCAB).freeze()
    live = make(net)
    plain, drafted = run(net, live), run(net, live, draft=True)
    assert all(torch.equal(plain[i], drafted[i]) for i in plain)


def test_a_draft_is_the_likeliest_token_at_every_blank_that_is_left():
    net = network(VOCAB).freeze()
    work = begin(of_rows([[4, *[MASK] * 6]], mask=MASK), policy_of("first-hitting"), seed=3)
    (turn,) = advance(net, [work], drafts=[True], vocab=VOCAB)
    logits = logits_at(net, work.canvas.tokens, torch.zeros(1), torch.arange(7))[:, :MASK].log_softmax(-1)
    left = [i for i in range(1, 7) if i not in turn.brought.rows]
    assert turn.draft.rows == left
    assert turn.draft.ids == logits.argmax(-1)[left].tolist()
    assert turn.draft.log_probs == pytest.approx(logits.amax(-1)[left].tolist(), abs=1e-5)
    assert advance(net, [work], drafts=[False], vocab=VOCAB)[0].draft is None


def test_alternatives_are_the_likeliest_tokens_alone_and_with_others():
    net = network(VOCAB).freeze()
    rows = [of_rows([[4 + i, *[MASK] * 6]], mask=MASK) for i in range(3)]
    made = [begin(row, policy_of("ancestral", steps=2), seed=3) for row in rows]
    alone = [advance(net, [work], drafts=[False], vocab=VOCAB, tops=[3])[0].brought for work in made]
    joined = [turn.brought for turn in advance(net, made, drafts=[False] * 3, vocab=VOCAB, tops=[0, 3, 2])]
    for work, one, other in zip(made, alone, joined, strict=True):
        logits = logits_at(net, work.canvas.tokens, torch.zeros(1), torch.tensor(one.rows))[:, :MASK].log_softmax(-1)
        best = logits.topk(3)
        assert [[id for id, _ in each] for each in one.likeliest] == best.indices.tolist()
        assert [[value for _, value in each] for each in one.likeliest] == [
            pytest.approx(values, abs=1e-5) for values in best.values.tolist()
        ]
        assert one.log_probs == pytest.approx(logits[range(len(one.ids)), one.ids].tolist(), abs=1e-5)
        assert [[id for id, _ in each] for each in other.likeliest] == best.indices.tolist()
    assert not advance(net, made[:1], drafts=[False], vocab=VOCAB)[0].brought.likeliest


def test_one_work_that_fails_does_so_alone():
    net = network(VOCAB).freeze()
    good = begin(blank(1, 4, mask=MASK), policy_of("first-hitting"), seed=1)
    bad = begin(blank(1, 9, mask=MASK), policy_of("first-hitting"), options=LogitOptions(banned=tuple(range(VOCAB))))
    before, error, after = advance(net, [good, bad, good], drafts=[False] * 3, vocab=VOCAB)
    assert isinstance(error, UserError)
    assert before.brought == after.brought


@pytest.mark.parametrize("draft", [False, True])
def test_one_work_that_fails_among_others_of_its_kind_does_so_alone(draft):
    """A hook breaks on rows that hold a certain token, as a constraint that cannot be met would."""
    net = network(VOCAB).freeze()

    def hook(asked, logits):
        return logits.masked_fill((asked.tokens == 5).any(1)[asked.row][:, None], -torch.inf)

    shape = LogitOptions(hook=hook)
    made = [
        begin(of_rows(rows, mask=MASK), policy_of("first-hitting"), seed=seed, options=shape)
        for seed, rows in enumerate(([[4, *[MASK] * 3]] * 2, [[5, *[MASK] * 6]], [[6, *[MASK] * 4]]))
    ]
    first, error, last = advance(net, made, drafts=[draft] * 3, vocab=VOCAB)
    assert isinstance(error, UserError)
    for turn, work in ((first, made[0]), (last, made[2])):
        (lonely,) = advance(net, [work], drafts=[draft], vocab=VOCAB)
        assert turn.brought.rows == lonely.brought.rows
        assert turn.brought.ids == lonely.brought.ids
        assert (turn.draft is None) == (not draft)
        assert not draft or turn.draft.rows == lonely.draft.rows


def test_logits_that_do_not_fit_into_memory_together_are_made_in_portions(monkeypatch):
    net = network(VOCAB).freeze()
    live = works(net)
    whole = run(net, live)
    monkeypatch.setattr(ticks, "LOGITS", 9 * VOCAB)
    passes, sizes = [], []

    class Counted:
        spec = net.spec

        def run(self, p):
            passes.append(len(p.x))
            return net.run(p)

        def head(self, hidden):
            sizes.append(len(hidden))
            return net.head(hidden)

    parts = run(Counted(), live)
    assert all(torch.equal(whole[i], parts[i]) for i in whole)
    assert len(sizes) > 1.5 * len(passes)
    assert max(sizes) <= max(int(work.canvas.hidden.sum()) for work in live)


@pytest.mark.parametrize("cached", [False, True])
def test_autoregressive_jobs_share_a_pass_and_each_becomes_what_it_would_alone(cached):
    net = network(VOCAB, causal=True, reads_before=True).freeze()
    process = autoregressive.AutoregressiveProcess(LogitOptions(temperature=0.8), cached=cached)
    starts = [
        [[1, 2, *[MASK] * 9]],
        [[3, *[MASK] * 5], [4, *[MASK] * 5]],
        [[5, 6, 7, *[MASK] * 12]],
        [[2, *[MASK] * 3]],
    ]
    canvases = [of_rows(rows, mask=MASK) for rows in starts]
    jobs = dict(enumerate(Job(process, process.begin(canvas, seed=i)) for i, canvas in enumerate(canvases)))
    while any(not job.done for job in jobs.values()):
        live = {i: job for i, job in jobs.items() if not job.done}
        turns = advance(net, list(live.values()), drafts=[False] * len(live), vocab=VOCAB)
        assert all(isinstance(turn, EngineTurn) for turn in turns), turns
        jobs |= {i: turn.work for i, turn in zip(live, turns, strict=True)}
    for i, canvas in enumerate(canvases):
        *_, last = processes.run(process, net, canvas, seed=i)
        assert torch.equal(jobs[i].canvas.tokens, last.canvas.tokens)
