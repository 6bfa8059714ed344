"""The random numbers are uniform, independent, and a function of (seed, row, position, draw) alone."""

import torch
from scipy.stats import chisquare

from unmask.random import ORDER, TOKEN, WHERE, Dice, keys, mix


def even(u, bins=64):
    return chisquare(torch.histc(u.flatten(), bins, 0, 1).numpy()).pvalue


def test_numbers_are_uniform_over_positions_rows_and_seeds():
    assert even(Dice(keys(0, torch.arange(1))).grid(500_000, ORDER)) > 1e-3
    assert even(Dice(keys(0, torch.arange(500_000))).grid(1, ORDER)) > 1e-3
    assert even(torch.cat([Dice(keys(seed, torch.arange(40))).grid(40, ORDER) for seed in range(100)])) > 1e-3


def test_neighbouring_rows_positions_draws_purposes_and_seeds_are_independent():
    rows, width = 1000, 200
    dice = Dice(keys(0, torch.arange(rows)))
    u = dice.grid(width, ORDER)
    row, column = torch.arange(rows).repeat_interleave(width), torch.arange(width).repeat(rows)
    zero = torch.zeros_like(row)
    pairs = [
        (u[:-1], u[1:]),
        (u[:, :-1], u[:, 1:]),
        (u, dice.grid(width, TOKEN)),
        (u, Dice(keys(1, torch.arange(rows))).grid(width, ORDER)),
        (u, dice.at(row, column, zero, ORDER)),
        (dice.at(row, column, zero, TOKEN), dice.at(row, column, zero + 1, TOKEN)),
        (dice.at(row, column, zero, TOKEN), dice.at(row, column, zero, WHERE)),
        (u, dice.grid(width, ORDER, number=torch.zeros(rows, dtype=torch.long))),
        (u[:200], u[:200].T),
    ]
    for a, b in pairs:
        cell = (a.flatten() * 16).long() * 16 + (b.flatten() * 16).long()
        assert chisquare(torch.bincount(cell, minlength=256).numpy()).pvalue > 1e-3


def test_a_number_does_not_depend_on_the_rows_beside_it_or_on_where_a_window_starts():
    whole = Dice(keys(7, torch.arange(9)))
    few = Dice(keys(7, torch.tensor([8, 3])))
    assert torch.equal(whole.grid(30, ORDER)[[8, 3]], few.grid(30, ORDER))
    assert torch.equal(whole.grid(30, ORDER)[:, 11:], Dice(whole.key, 11).grid(19, ORDER))
    number = torch.tensor([4, 4])
    at = whole.at(torch.tensor([8, 3]), torch.tensor([12, 13]), number, TOKEN)
    shifted = Dice(few.key, 11).at(torch.tensor([0, 1]), torch.tensor([1, 2]), number, TOKEN)
    assert torch.equal(at, shifted)
    fours = torch.full((9,), 4)
    assert torch.equal(at, whole.grid(30, TOKEN, number=fours)[[8, 3], [12, 13]])


def test_no_two_of_many_seeds_and_rows_share_a_key():
    many = torch.cat([keys(seed, torch.arange(300)) for seed in range(300)])
    assert len(many.unique()) == len(many)


def test_numbers_lie_in_the_half_open_interval_and_seeds_of_any_size_work():
    u = Dice(keys(-(2**70) + 5, torch.arange(100))).grid(1000, ORDER)
    assert u.dtype == torch.float64
    assert 0 <= float(u.min()) < 1e-3
    assert 1 - 1e-3 < float(u.max()) < 1
    assert len(u.unique()) == u.numel()


def test_mixing_is_splitmix64():
    # The first outputs of the published generator for seed 0: state 0, then one golden step more each time.
    golden = 0x9E3779B97F4A7C15
    states = [((i * golden + 2**63) % 2**64) - 2**63 for i in range(3)]
    known = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [int(z) % 2**64 for z in mix(torch.tensor(states))] == known
