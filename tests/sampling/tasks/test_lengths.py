"""The posterior of blank lengths against enumeration, and the lengths of candidates by it."""

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch

import exact
import unmask
from sampling.test_score import enumerated
from unmask.model.backbone import Backbone
from unmask.model.passing import States
from unmask.sampling.tasks.infill import Infill
from unmask.sampling.tasks.lengths import Posterior, posterior_of, weigh
from unmask.text.prompt.template import parse


class ChainNetwork(Backbone):
    """The exact denoiser of a Markov chain over a, b and c, for rows of any length, in place of a model's network."""

    device = torch.device("cpu")

    def __init__(self, model, world):
        super().__init__()
        self.spec, self.world = model.spec, world
        names = model.tokenizer.encode("abc")
        self.to_world = torch.full((model.spec.vocab,), world.mask)
        self.to_world[names] = torch.arange(3)
        self.from_world = torch.tensor([*names, model.mask])

    def forward(self, p):
        rows = torch.arange(p.x.numel()) if p.wanted is None else p.wanted
        impossible = torch.full((len(rows), self.spec.vocab), -60.0, dtype=torch.float64)
        found = impossible.index_copy(1, self.from_world, self.world.network(self.to_world[p.x], p.sigma, rows))
        return States(found if p.wanted is not None else found.unflatten(0, p.x.shape))

    def head(self, hidden):
        return hidden

    def embed(self, tokens):
        raise NotImplementedError

    def units(self):
        return []


@pytest.fixture(scope="module")
def chain(model):
    """A model whose network is exact for a Markov chain over a, b and c."""
    world = exact.ChainWorld.random(5, letters=3)
    return replace(model, network=ChainNetwork(model, world)), world


def log_marginal(world, parts, lengths):
    """log p(given | where the blanks are): the chain with its blanks summed out, by products of matrices."""
    here, gap = None, 0
    total = torch.tensor(1.0, dtype=torch.float64)
    for part, length in zip(parts, [*lengths, 0], strict=True):
        for letter in part:
            if here is None:
                chance = (world.start @ torch.linalg.matrix_power(world.step, gap))[letter]
            else:
                chance = torch.linalg.matrix_power(world.step, gap + 1)[here, letter]
            total, here, gap = total * chance, letter, 0
        gap += length
    return float(total.log())


def last(steps):
    *_, found = steps
    return found


@pytest.mark.parametrize("text", ["ab___ca", "___b", "ca[1-4]b[2-3]a", "abcab___", "c___c"])
def test_the_posterior_is_that_of_the_chain(chain, text):
    model, world = chain
    task = Infill(model, parse(text, most=5))
    parts = [["abc".index(letter) for letter in part] for part in split(text)]
    choices = task.choices(16)
    found = last(task.weigh(choices, passes=32, seed=1))
    truth = {one: log_marginal(world, parts, one) for one in choices}
    total = math.log(sum(map(math.exp, truth.values())))
    for lengths, chance, error in zip(found.choices, found.chance, found.error, strict=True):
        assert math.log(chance) == pytest.approx(truth[lengths] - total, abs=4 * error + 4 * max(found.error) + 1e-6)
    assert max(found.error) < 0.3
    assert sum(found.chance) == pytest.approx(1)


def split(text):
    """The given letters before, between and after the blanks."""
    return re.split(r"___|\[\d-\d\]", text)


@pytest.mark.parametrize("n", [1, 2, 8, pytest.param(32, marks=pytest.mark.slow)])
def test_the_first_candidate_has_the_most_probable_length_whatever_their_number(chain, n):
    model, world = chain
    right = 0
    for text in ("ab___ca", "b___b", "ca___ab", "cc___a", "a___bc"):
        parts = [["abc".index(letter) for letter in part] for part in text.split("___")]
        truth = {k: log_marginal(world, parts, (k,)) for k in range(1, 7)}
        found = unmask.infill(model, text, n=n, longest=6, seed=n, passes=16)
        assert len(found) == n or "different texts" in found[0].note
        assert len({one.text for one in found}) == len(found)
        gap = max(truth.values()) - truth[found[0].lengths[0]]
        assert gap == 0 or found[0].note, (text, gap)  # a length that is not the best is told to be in doubt
        right += gap == 0
        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] == pytest.approx(math.log(found[0].length_probability))
    assert right >= 4


def test_an_inconsistent_network_is_weighed_by_the_bound(model):
    start = {
        k: torch.tensor([*model.tokenizer.encode("ba"), *[model.mask] * k, *model.tokenizer.encode("d")])
        for k in (1, 2, 3)
    }
    found = last(weigh(model, [(k,) for k in start], list(start.values()), passes=64, seed=3))
    truth = {}
    for k, row in start.items():
        blank = (row == model.mask).nonzero().flatten().tolist()
        truth[k,] = enumerated(model, row, [i for i in range(len(row)) if i not in blank], unseen=blank)
    best = truth[found.choices[0]]
    for lengths, behind, error in zip(found.choices, found.behind, found.error, strict=True):
        assert behind == pytest.approx(best - truth[lengths], abs=4 * error + 1e-5)


def test_the_choice_does_not_change_with_the_seed(chain):
    model, _ = chain
    found = {unmask.infill(model, "cc___a", longest=6, seed=seed, passes=16)[0].lengths for seed in range(8)}
    assert len(found) == 1


def test_the_error_is_the_spread_over_seeds(chain):
    model, _ = chain
    letters = model.tokenizer.encode
    starts = [torch.tensor([*letters("abc"), *[model.mask] * k, *letters("bca")]) for k in (1, 4)]
    found = [last(weigh(model, [(1,), (4,)], starts, passes=2, seed=seed)) for seed in range(60)]
    signed = torch.tensor([one.behind[1] * (1 if one.choices[0] == (1,) else -1) for one in found])
    typical = torch.tensor([one.error[1] for one in found]).square().mean().sqrt()
    assert 0.6 < float(signed.std() / typical) < 1.6


def test_more_passes_are_spent_only_on_choices_that_may_be_the_best():
    rows = [
        torch.tensor([0.0, 0.1, -0.1, 0.0]),
        torch.tensor([0.1, 0.1, -0.2, -0.1]),
        torch.tensor([-5.0, -5.1, -5, -5]),
    ]
    found = posterior_of([(1,), (2,), (3,)], [row.double() for row in rows], passes=4)
    assert found.choices == ((1,), (2,), (3,))
    assert found.rivals == [1]
    assert "1 and 2 tokens fit about equally well" in found.note


def test_lengths_are_taken_in_proportion_and_one_more_changes_none_before():
    posterior = Posterior(((1,), (2,), (3,)), (0.5, 0.3, 0.2), (0.0, 0.5, 0.9), (0.0, 0.0, 0.0))
    assert Counter(posterior.lengths(10)) == {(1,): 5, (2,): 3, (3,): 2}
    assert posterior.lengths(10)[:4] == posterior.lengths(4)
    assert posterior.lengths(1) == [(1,)]
    assert list(islice(posterior.turns(Counter(), frozenset([0])), 2)) == [1, 2]
    assert list(islice(posterior.turns(Counter(), frozenset([0, 1, 2])), 2)) == []


def test_lengths_of_a_text_that_is_all_blank_are_equally_probable(model):
    rows = [torch.full((k,), model.mask) for k in (1, 2)]
    assert last(weigh(model, [(1,), (2,)], rows)).chance == pytest.approx((0.5, 0.5))
