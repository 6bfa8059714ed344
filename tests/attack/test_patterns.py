"""Patterns of strangers: a few seeds in every run of the tests, thousands in `make attack`."""

import pytest

from attack.patterns import attempt, outcome


@pytest.mark.slow
def test_a_few_hostile_patterns_are_refused_or_obeyed(tmp_path):
    told = [outcome(seed) for seed in range(24)]
    assert [one for one in told if "failed:" in one] == []
    assert sum(one.endswith("done") for one in told) > 3, "some are obeyed"
    assert sum("refused:" in one for one in told) > 3, "and some refused"


@pytest.mark.attack
@pytest.mark.parametrize("start", range(1000, 2000, 100))
def test_many_hostile_patterns_are_refused_or_obeyed(start, tmp_path):
    for seed in range(start, start + 100):
        told = attempt(seed, tmp_path)
        assert told is None, f"python tests/attack/long.py patterns --seed {seed} --tries 1\n{told}"
