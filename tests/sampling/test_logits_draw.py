"""Draws are exact, also where one class dominates and float32 noise fails."""

import math

import pytest
import torch
from scipy.stats import chisquare

from reference.samplers import race
from unmask.errors import UserError
from unmask.random import TOKEN, Dice, keys
from unmask.sampling import logits
from unmask.sampling.guidance import mix_predictions
from unmask.sampling.logits import inverse_cdf

LATTICE = 2**-24  # torch.rand in float32 gives multiples of it


def chance_of_rare_in_race(q: float) -> float:
    """The exact chance that a class of weight q beats one of weight 1 in the float32 race, by enumeration.

    The rare class can win only with its uniform within a few lattice steps of 1; the other's is integrated over.
    """
    top = 1 - LATTICE * torch.arange(1, 513, dtype=torch.float64)
    cells = 4000
    other = ((torch.arange(cells, dtype=torch.float64) + 0.5) / cells)[:, None].expand(-1, len(top))
    u = torch.stack([other, top.expand(cells, -1)], -1).float()
    wins = race(torch.tensor([1.0, q]).expand_as(u), u)
    return float(wins.double().sum(1).mean()) * LATTICE


def chance_of_rare_in_ours(q: float) -> float:
    """The length of the interval of uniforms that give the rare class, seen through a fine comb near 1."""
    teeth = 4096
    u = 1 - (torch.arange(teeth, dtype=torch.float64) + 0.5) * (4 * q / teeth)
    logits = torch.tensor([0.0, math.log(q)]).expand(teeth, -1)
    return float(inverse_cdf(logits, u).double().mean()) * 4 * q


@pytest.mark.parametrize("q", [2**-23, 2**-24, 2**-25, 2**-26])
def test_a_rare_token_beside_a_dominating_class_keeps_its_chance_and_loses_it_in_a_float32_race(q):
    r = LATTICE / q
    assert chance_of_rare_in_ours(q) == pytest.approx(q, rel=2e-3)
    assert chance_of_rare_in_race(q) == pytest.approx(q * r / math.expm1(r), rel=0.03)
    assert chance_of_rare_in_race(q) < 0.8 * q


@pytest.mark.slow
def test_draws_follow_a_law_with_a_dominating_class_and_a_long_tail():
    p = torch.cat([torch.tensor([0.99]), 0.01 * torch.ones(200).div(torch.arange(1, 201)).softmax(-1)])
    n = 1_000_000
    u = Dice(keys(3, torch.arange(1))).grid(n, TOKEN)[0]
    seen = torch.zeros(201, dtype=torch.long)
    for part in u.split(20_000):
        seen += inverse_cdf(p.log().expand(len(part), -1), part).bincount(minlength=201)
    assert chisquare(seen.numpy(), (p.double() / p.double().sum() * n).numpy()).pvalue > 1e-3


def test_an_impossible_token_is_never_drawn_whatever_the_uniform():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    for u in (0.0, 1e-17, 0.5, 1 - 2**-53):
        assert int(inverse_cdf(logits, torch.tensor([u], dtype=torch.float64))) in (1, 3)


def test_logits_of_any_size_are_drawn_from():
    u = torch.tensor([0.3, 0.3], dtype=torch.float64)
    assert inverse_cdf(torch.tensor([[1e4, 0.0], [-1e4, -2e4]]), u).tolist() == [0, 0]


def test_a_position_where_nothing_can_stand_is_an_error():
    with pytest.raises(UserError, match="banned"):
        inverse_cdf(torch.full((1, 3), -torch.inf), torch.tensor([0.5]))
    with pytest.raises(UserError, match="NaN"):
        inverse_cdf(torch.full((1, 3), torch.nan), torch.tensor([0.5]))


def test_rows_in_pieces_are_the_rows_at_once(monkeypatch):
    """Drawing, top-p and guidance work on some rows at a time: the same numbers, whatever the size of a piece."""
    dice = torch.Generator().manual_seed(0)
    rows, blind = (torch.randn(11, 7, generator=dice) for _ in range(2))
    u = torch.rand(11, generator=dice)
    found = []
    for numbers in (10**6, 7 * 3, 1):  # all rows, three of them, one
        monkeypatch.setattr(logits, "NUMBERS", numbers)
        found.append(
            (logits.inverse_cdf(rows, u), logits.nucleus(rows, 0.7), mix_predictions(rows, blind, 2.0, mask=6))
        )
    for pieces in found[1:]:
        assert all(torch.equal(one, whole) for one, whole in zip(pieces, found[0], strict=True))
