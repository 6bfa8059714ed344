"""Gibbs sampling: the recorded runs, the exact law of every scan, and a consistent model's law left as it is."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch

import exact
from contracts.members import model_of
from model.golden import FOLDER, arrays_of
from sampling.laws import draws
from unmask.diffusion.clean import CleanRows
from unmask.errors import UserError
from unmask.evaluation.likelihood.estimators import Pseudo
from unmask.model.model import Model
from unmask.random import Noise
from unmask.sampling.logits import inverse_cdf
from unmask.sampling.masked import ask, begin, set_tokens
from unmask.sampling.policies.gibbs import Gibbs
from unmask.sampling.policy import POLICIES
from unmask.sampling.recipe import Recipe, doubt
from unmask.text.prompt.canvas import of_tokens

ENOUGH = 1e-4
ROWS = 40_000


@dataclass(frozen=True)
class Recorded(Gibbs):
    """Gibbs sampling at recorded positions."""

    positions: tuple[int, ...] = ()

    def place(self, view, draw):
        if self.scan == "parallel":
            return view.free
        at = torch.tensor(self.positions)[draw.clamp(max=len(self.positions) - 1)] + 1
        return torch.arange(view.tokens.shape[1]) == at[:, None]


@pytest.fixture(scope="module")
def case():
    return arrays_of(FOLDER / "baselines" / "bertmouth_cases.npz")


def scripted(case, tokens):
    """The scripted network of the recording: logits at all positions."""
    x = case["embed"][tokens] + case["positions_embed"]
    return torch.tanh(x @ case["net_A"] + x.mean(1, keepdim=True) @ case["net_C"]) @ case["net_B"]


def in_falling_order(logits, u):
    """As the original draws after the burn-in: among the tokens left, the most likely first."""
    value, order = logits.sort(-1, descending=True)
    return order.gather(-1, inverse_cdf(value, u)[:, None]).squeeze(-1)


def walked(case, policy, temperature, u):
    """What the network is shown at every call, and the rows at the end, with recorded numbers for the draws."""
    cls, sep, mask, length = (int(case[name]) for name in ("cls", "sep", "mask", "length"))
    rows = torch.tensor([[cls, *[mask] * length, sep]]).repeat(3, 1)
    work, shown = begin(of_tokens(rows, mask=mask), policy), []
    while (asked := ask(work)) is not None:
        if int(asked.view.memory[0][0]) >= policy.steps:
            break
        shown.append(asked.tokens)
        logits = policy.tilt(asked.view, asked.rows, scripted(case, asked.tokens).flatten(0, 1)[asked.rows])
        late = int(asked.view.memory[0][0]) >= policy.burnin
        number = next(u)
        tokens = (in_falling_order if late else inverse_cdf)(logits.double() / temperature, number.flatten())
        work, _ = set_tokens(work, asked, asked.rows, tokens, torch.zeros(len(tokens)), asked.view.memory)
    return torch.stack(shown), work.canvas.tokens


@pytest.mark.parametrize("temperature", ["1.0", "0.7"])
def test_the_recorded_run_state_by_state(case, temperature):
    told = {name: case[f"gibbs_{temperature}_{name}"] for name in ("positions", "inputs", "u", "out")}
    policy = Recorded(
        **{name: int(case[key]) for name, key in (("steps", "iterations"), ("burnin", "burnin"), ("top_k", "top_k"))},
        positions=tuple(told["positions"].tolist()),
    )
    shown, end = walked(case, policy, float(temperature), iter(told["u"]))
    assert torch.equal(shown, told["inputs"])
    assert torch.equal(end, told["out"])


@pytest.mark.slow
def test_the_recorded_parallel_run(case):
    """Recorded draws come by position, then by row; ours by row, then by position."""
    u = case["parallel_u"].view(3, int(case["length"]), 3).transpose(1, 2)
    shown, end = walked(case, Recorded(steps=3, scan="parallel", hide=False, burnin=3), 1.0, iter(u))
    assert torch.equal(shown, case["parallel_inputs"])
    assert torch.equal(end, case["parallel_out"])


@pytest.mark.slow
def test_the_pseudo_likelihood_is_the_recorded_one(case):
    x, mask = case["score_x"], int(case["mask"])
    around = torch.tensor([[int(case["cls"]), int(case["sep"])]]).repeat(3, 1)
    x0 = torch.cat((around[:, :1], x, around[:, 1:]), 1)
    frozen = torch.zeros_like(x0, dtype=torch.bool).index_fill(1, torch.tensor([0, x0.shape[1] - 1]), True)
    whole = lambda x_t, sigma, rows: scripted(case, x_t).flatten(0, 1)[rows]  # noqa: E731
    u = torch.zeros(x0.shape)
    found = Pseudo(budget=64).nats(whole, CleanRows(x0, noise=Noise(u[:, 0], u), mask=mask, frozen=frozen))[:, 1:-1]
    mass = scripted(case, x0.repeat_interleave(6, 0).scatter(1, torch.arange(1, 7).repeat(3)[:, None], mask))
    kept = 1 - mass[range(18), torch.arange(1, 7).repeat(3)].softmax(-1)[:, mask]  # ours never predicts the mask
    assert torch.allclose(found - kept.log().view(3, 6), case["pseudo_nats"], atol=3e-5)


def law_of(world, policy: Gibbs) -> dict[tuple[int, ...], float]:
    """The law of a policy on an enumerable world, from all masks: every draw is a step of an explicit chain."""
    length, mask = world.length, world.mask
    law = {((mask,) * length): 1.0}
    for draw in range(policy.steps):
        after: dict[tuple[int, ...], float] = {}
        for state, chance in law.items():
            turns = [draw % length] if policy.scan == "sequential" else range(length)
            for turn in [tuple(range(length))] if policy.scan == "parallel" else [(one,) for one in turns]:
                seen = torch.tensor([mask if policy.hide and i in turn else v for i, v in enumerate(state)])
                probs = [exact.log_p_hidden(world, seen, i).exp().tolist() for i in turn]
                for letters in product(range(world.letters), repeat=len(turn)):
                    new = list(state)
                    for i, letter in zip(turn, letters, strict=True):
                        new[i] = letter
                    p = chance * np.prod([probs[k][letter] for k, letter in enumerate(letters)])
                    p /= length if policy.scan == "random" else 1
                    after[tuple(new)] = after.get(tuple(new), 0.0) + float(p)
        law = after
    while any(mask in state for state in law):  # what is left is filled from the left
        after = {}
        for state, chance in law.items():
            at = state.index(mask) if mask in state else None
            options = [state] if at is None else [(*state[:at], v, *state[at + 1 :]) for v in range(world.letters)]
            probs = [0.0] if at is None else exact.log_p_hidden(world, torch.tensor(state), at).tolist()
            for new, log_p in zip(options, probs, strict=True):
                after[new] = after.get(new, 0.0) + chance * float(np.exp(log_p))
        law = after
    return law


SCANS = {
    "random": Gibbs(steps=5, top_k=0),
    "sequential": Gibbs(steps=5, scan="sequential", top_k=0),
    "unmasked": Gibbs(steps=5, hide=False, top_k=0),
    "parallel": Gibbs(steps=3, scan="parallel", hide=False, top_k=0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCANS)
def test_samples_follow_the_law_of_the_explicit_chain(name):
    world = exact.TableWorld.random(2)
    law = law_of(world, SCANS[name])
    assert sum(law.values()) == pytest.approx(1)
    assert exact.chi_square_p(law, draws(world, SCANS[name], rows=ROWS)) > ENOUGH


def test_two_scans_of_an_inconsistent_model_differ_and_those_of_a_consistent_one_keep_its_law():
    """Two times around a table that belongs to no distribution, and around a Markov chain's own conditionals."""
    table, chain = exact.TableWorld.random(2), exact.ChainWorld.random(3, letters=2, length=3)
    laws = {}
    for name in ("random", "sequential"):
        policy = replace(SCANS[name], steps=6)
        laws[name] = law_of(table, policy)
        assert exact.total_variation(law_of(chain, policy), exact.law_of_chain(chain)) < 1e-9
    assert exact.total_variation(*laws.values()) > 0.01


@pytest.mark.slow
def test_draws_with_a_consistent_model_follow_its_law_however_long_they_go_on():
    chain = exact.ChainWorld.random(3, letters=2, length=3)
    for name in ("random", "sequential"):
        found = draws(chain, replace(SCANS[name], steps=11), rows=ROWS)
        assert exact.chi_square_p(exact.law_of_chain(chain), found) > ENOUGH


def test_late_draws_are_from_the_most_likely_tokens():
    world = exact.TableWorld.random(2)
    greedy = Gibbs(steps=30, burnin=0, top_k=1, scan="sequential")
    assert len({tuple(row) for row in draws(world, greedy, rows=50).tolist()}) == 1
    assert len({tuple(row) for row in draws(world, replace(greedy, burnin=30), rows=50).tolist()}) > 1


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="would see masks alone"):
        Gibbs(scan="parallel")
    with pytest.raises(UserError, match="steps must be at least 1; saw 0"):
        Gibbs(steps=0)
    assert POLICIES.make("gibbs-parallel:steps=3") == Gibbs(steps=3, scan="parallel", hide=False)


def test_a_model_that_was_not_trained_as_a_masked_language_model_is_warned_about(tmp_path):
    other: Model = model_of(tmp_path / "m", "mdlm")
    own: Model = model_of(tmp_path / "b", "mlm")
    assert "not trained as a masked language model" in doubt(other, 5, Recipe(sampler="gibbs"))
    assert doubt(own, 5, Recipe(sampler="gibbs-sequential")) is None
    assert doubt(other, 5, Recipe()) is None
