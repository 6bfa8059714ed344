"""Remasking keeps the schedule: P(hidden) against the formula, the law by enumeration, calls against the budget."""

import pytest
import torch

import exact
from sampling.laws import last
from unmask.diffusion.schedule import Cosine, LogLinear
from unmask.errors import UserError
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Sliding, ask, begin, commit, fill
from unmask.sampling.policies.remask import RULES, Remask, most_hidden_again, reveal_chance_remasking
from unmask.text.prompt.canvas import blank, of_tokens

ENOUGH = 1e-4
ROWS = 40_000
STRONG = {"cap": 0.3, "rescale": 0.7, "conf": 0.7, "loop": 0.1, "forward-backward": 1.0}


@pytest.mark.parametrize("schedule", [LogLinear(eps=0), Cosine(eps=0)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_the_formulas_keep_the_hidden_share_of_the_schedule_at_every_step(rule, schedule):
    alpha, sigma = Remask(rule, 12, STRONG[rule], schedule).path()
    hidden = torch.ones(())
    for t, s, again in zip(alpha[:-1], alpha[1:], sigma, strict=True):
        assert 0 <= again <= most_hidden_again(s, t)
        hidden = hidden * (1 - reveal_chance_remasking(s, t, again)) + (1 - hidden) * again
        assert float(hidden) == pytest.approx(float(1 - s), abs=1e-6)
    assert bool((sigma > 0).any())


def grid_law(world, policy):
    """The states before each step with their chances, every token and every choice enumerated."""
    alpha, sigma = policy.path()
    law = {(world.mask,) * world.length: 1.0}
    found = [law]
    for t, s, again in zip(alpha[:-1].tolist(), alpha[1:].tolist(), sigma.tolist(), strict=True):
        reveal = 1.0 if t == 1 else min(1.0, max(0.0, (s - (1 - again) * t) / (1 - t)))
        after = {}
        for state, chance in law.items():
            ways = {(): chance}
            for i, token in enumerate(state):
                if token == world.mask:
                    probs = exact.log_p_hidden(world, torch.tensor(state), i).exp().tolist()
                    options = {world.mask: 1 - reveal} | {v: reveal * p for v, p in enumerate(probs)}
                else:
                    options = {world.mask: again, token: 1 - again}
                ways = {(*way, v): p * q for way, p in ways.items() for v, q in options.items() if p * q > 0}
            for way, p in ways.items():
                after[way] = after.get(way, 0.0) + p
        law = after
        found.append(law)
    return alpha, found


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "conf"])
def test_an_exact_denoiser_keeps_the_schedule_and_the_enumerated_law_is_drawn(rule):
    world = exact.ChainWorld.random(3, letters=2, length=3)
    policy = Remask(rule, 20 if rule == "loop" else 4, STRONG[rule], LogLinear(eps=0))
    alpha, found = grid_law(world, policy)
    for share, law in zip(alpha.tolist(), found, strict=True):
        for i in range(world.length):
            hidden = sum(p for state, p in law.items() if state[i] == world.mask)
            assert hidden == pytest.approx(1 - share, abs=1e-6)
    draws = last(fill(world.network, blank(ROWS, 3, mask=world.mask), policy)).canvas.tokens
    assert exact.chi_square_p(found[-1], draws) > ENOUGH


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "conf"])
def test_a_denoiser_that_contradicts_itself_is_drawn_by_the_enumerated_law(rule):
    """Here the law depends on how much is revealed at once, so every chance on the way matters."""
    world = exact.TableWorld.random(9)
    policy = Remask(rule, 8 if rule == "loop" else 4, STRONG[rule], LogLinear(eps=0), held=0.6)
    draws = last(fill(world.network, blank(ROWS, 3, mask=world.mask), policy)).canvas.tokens
    assert exact.chi_square_p(grid_law(world, policy)[1][-1], draws) > ENOUGH


def hidden_before_each_step(policy, network, length, rows):
    """The hidden share before each step, measured; rows walk through steps at their own pace."""
    work = begin(blank(rows, length, mask=3), policy)
    shares = torch.zeros(policy.steps + 1, dtype=torch.float64)
    seen = torch.zeros(policy.steps + 1, dtype=torch.float64)
    while (question := ask(work)) is not None:
        step = question.view.memory[0]
        shares.index_add_(0, step, question.view.hidden.double().mean(1))
        seen.index_add_(0, step, torch.ones(len(step), dtype=torch.float64))
        work, _ = commit(work, question, network(question.tokens, question.sigma, question.rows))
    return shares / seen.clamp(min=1), seen


@pytest.mark.parametrize("rule", RULES)
def test_the_drawn_canvases_keep_the_schedule(rule):
    """With 60 positions every step reveals something but for the last few, so the rows at a step are all rows."""

    def network(x_t, sigma, rows):  # confident in some tokens, for `conf` to have something to judge by
        return torch.tensor([4.0, 0.0, 1.0, 0.0]).expand(len(rows), -1)

    policy = Remask(rule, 6, STRONG[rule], LogLinear(eps=0), held=0.6)
    shares, seen = hidden_before_each_step(policy, network, 60, 500)
    alpha, _ = policy.path()
    steps = [i for i in range(6) if seen[i] == 500]
    assert len(steps) >= 4
    for i in steps:
        assert float(shares[i]) == pytest.approx(1 - float(alpha[i]), abs=0.015), i


def test_conf_hides_again_what_was_unlikely_when_it_was_written():
    def network(x_t, sigma, rows):
        return torch.tensor([2.5, 0.0, 0.0, 0.0]).expand(len(rows), -1)

    hidden_again = {"conf": [], "rescale": []}
    for rule, lost in hidden_again.items():
        work = begin(blank(300, 40, mask=3), Remask(rule, 8, 0.1, LogLinear(eps=0)))
        while (question := ask(work)) is not None:
            before = work.canvas.tokens
            work, _ = commit(work, question, network(question.tokens, question.sigma, question.rows))
            lost += before[(before != 3) & (work.canvas.tokens == 3)].tolist()
    likely = {rule: sum(token == 0 for token in lost) / len(lost) for rule, lost in hidden_again.items()}
    assert likely["conf"] < likely["rescale"] - 0.05


@pytest.mark.parametrize("rule", RULES)
def test_steps_bound_the_calls_and_given_tokens_stay(rule):
    start = torch.tensor([[0, 3, 3, 1, 3, 3, 3, 2]]).repeat(16, 1)
    world = exact.ChainWorld.random(0, length=8)
    steps = list(fill(world.network, of_tokens(start, mask=3), Remask(rule, 10, STRONG[rule])))
    assert len(steps) <= 10
    assert all(bool((step.canvas.tokens[:, [0, 3, 7]] == start[:, [0, 3, 7]]).all()) for step in steps)
    assert bool((steps[-1].canvas.tokens != 3).all())


def test_some_positions_are_drawn_more_than_once_and_a_row_does_not_depend_on_its_neighbours():
    world = exact.ChainWorld.random(0, length=8)
    policy = Remask("rescale", 16, 0.9)
    many = list(fill(world.network, blank(8, 8, mask=3), policy))
    assert sum(len(step.rows) for step in many) > 8 * 8
    alone = last(fill(world.network, blank(1, 8, mask=3), policy, ids=torch.tensor([5]))).canvas.tokens[0]
    assert torch.equal(alone, many[-1].canvas.tokens[5])


def test_windows_hide_again_only_what_they_fill():
    world = exact.ChainWorld.random(0, length=4)
    done = torch.zeros(4, 0, dtype=torch.long)
    for step in fill(world.network, blank(4, 8, mask=3), Remask("rescale", 8, 0.9), windows=Sliding(4, 2)):
        known = step.canvas.tokens[:, : done.shape[1]]
        assert torch.equal(known, done)
        if step.rows.remainder(8).min() >= 4:
            done = step.canvas.tokens[:, :4]
    assert bool((step.canvas.tokens != 3).all())


def test_remasking_obeys_a_constraint():
    from sampling.patterns.test_constraint import ABC
    from unmask.sampling.patterns.constraint import matching

    world = exact.ChainWorld.random(0, length=6)
    options = LogitOptions(constraint=matching("(ab|c)+", ABC))
    tokens = last(
        fill(world.network, blank(200, 6, mask=3), Remask("rescale", 8, 0.9), options=options)
    ).canvas.tokens
    texts = {"".join("abc"[token] for token in row) for row in tokens.tolist()}
    assert all(text.replace("ab", "c") == "c" * len(text.replace("ab", "c")) for text in texts)


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"rule": "capp"}, "Did you mean 'cap'"),
        ({"eta": 2.0}, "0..1"),
        ({"eta": float("nan")}, "0..1"),
        ({"end": 0.7}, "loop"),
    ],
)
def test_wrong_settings_are_refused(wrong, told):
    with pytest.raises(UserError, match=told):
        Remask(**wrong)
