"""The reverse steps of D3PM and SEDD: what may be drawn changes the tokens, never when a position is revealed."""

import math

import pytest
import torch

import exact
from quick import first_few
from sampling import laws
from sampling.laws import law_of
from unmask.diffusion.schedule import LogLinear
from unmask.diffusion.times import grid
from unmask.sampling.logits import LogitOptions
from unmask.sampling.patterns.constraint import Constraint, matching
from unmask.sampling.patterns.tokens import Words, anything
from unmask.sampling.policies.reverse import Analytic, D3PMReverse
from unmask.sampling.policy import POLICIES, policy_of

ENOUGH = 1e-4
STEPS = 3
ABC = Words((b"a", b"b", b"c", b""), (b"a", b"b", b"c", b""), silent=frozenset([3]))
EVERY = [tuple(text) for text in exact.every_text(3, 3).tolist()]


def allowed(**sets):
    places = {int(name[1:]): ids for name, ids in sets.items()}
    return Constraint(anything(4, mask=3), allowed=places)


def texts(keep):
    """The texts that may result, written as three letters."""
    return [text for text in EVERY if keep("".join("abc"[i] for i in text))]


@pytest.mark.parametrize("constraint", [matching("[abc]{3}", ABC), allowed(p0=[0, 1, 2], p2=[0, 1, 2])])
@pytest.mark.parametrize("name", first_few(name for name in POLICIES if "masks" in POLICIES[name].needs))
def test_a_constraint_that_forbids_nothing_changes_nothing(name, constraint):
    world, policy = exact.TableWorld.random(5), policy_of(name, steps=STEPS if POLICIES[name].budget else None)
    free, bound = (
        laws.draws(world, policy, seed=52, rows=500, options=options)
        for options in (LogitOptions(), LogitOptions(constraint=constraint))
    )
    assert torch.equal(free, bound)


def d3pm_chance(logits, call):
    """1 − p(x_s = m | x_t = m), from Bayes' rule on the transition matrices of one position."""
    p, (t, s) = logits.softmax(-1), grid(STEPS)[call : call + 2].tolist()
    stays = s + (1 - s) * p[3]
    goes = (1 - s) * (1 - p[3]) * (1 - (1 - t) / (1 - s))
    return float(goes / (stays + goes))


def analytic_chance(logits, call):
    """(e^Δσ − 1) Σ s_y over every y but the mask."""
    t, s = LogLinear().at(grid(STEPS, last=1e-5)[call : call + 2]).sigma.tolist()
    return min(1.0, math.expm1(t - s) * float(logits[:3].exp().sum()) / math.expm1(t) / 3)


PROCESSES = {"d3pm": (D3PMReverse(STEPS), d3pm_chance), "analytic": (Analytic(STEPS), analytic_chance)}
SHAPES = {
    "pattern": (LogitOptions(constraint=matching("a.*|b[bc]a", ABC)), lambda x: x[0] == "a" or x in ("bba", "bca")),
    "allowed": (LogitOptions(constraint=allowed(p0=[1], p2=[0, 2])), lambda x: x[0] == "b" and x[2] != "b"),
    "keyword": (LogitOptions(constraint=matching(".*ab.*", ABC)), lambda x: "ab" in x),
    "banned": (LogitOptions(banned=(2,)), lambda x: "c" not in x),
}


def shaped(world, state, where, kept):
    """Tokens drawn from the left, each among those that still lead to a text that is kept."""
    found = [(list(state), 1.0)]
    for i in where:
        log_p = exact.log_p_hidden(world, torch.tensor(state), i)
        after = []
        for so_far, chance in found:
            fits = [text for text in kept if all(a in (b, world.mask) for a, b in zip(so_far, text, strict=True))]
            ways = sorted({text[i] for text in fits})
            probs = log_p[ways].softmax(-1).tolist()
            after += [
                ([*so_far[:i], letter, *so_far[i + 1 :]], chance * p) for letter, p in zip(ways, probs, strict=True)
            ]
        found = after
    return [(tuple(text), chance) for text, chance in found]


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("process", PROCESSES)
def test_positions_follow_the_process_and_tokens_what_may_be_drawn(process, options, monkeypatch):
    world = exact.TableWorld.random(5)
    (policy, chance), (how, keep) = PROCESSES[process], SHAPES[options]
    kept = texts(keep)
    monkeypatch.setattr(laws, "filled", lambda world, state, where: shaped(world, state, list(where), kept))
    law = law_of(world, laws.independently(world, chance, STEPS))
    assert exact.chi_square_p(law, laws.draws(world, policy, options=how, rows=20_000)) > ENOUGH
