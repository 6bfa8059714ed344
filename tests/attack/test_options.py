"""Command lines with odd numbers are obeyed or refused in words: some, or (marked attack) many."""

import pytest

from attack.options import attempt
from confined import failures

pytestmark = pytest.mark.slow


def test_some_odd_numbers_are_obeyed_or_refused_in_words(tmp_path):
    assert failures(attempt, range(1, 16), tmp_path) == {}


@pytest.mark.attack
@pytest.mark.parametrize("start", range(1001, 1301, 100))
def test_odd_numbers_are_obeyed_or_refused_in_words(start, tmp_path):
    assert failures(attempt, range(start, start + 100), tmp_path) == {}
