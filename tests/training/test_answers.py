"""Answers as cells of a table."""

import pytest

from unmask.training.answers import without_formula


@pytest.mark.parametrize(
    "cell, written",
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+a", "'+a"),
        ("-a", "'-a"),
        ("@a", "'@a"),
        ("\ta", "'\ta"),
        ("-0.5", "-0.5"),
        ("-1e-05", "-1e-05"),
        ("+1", "+1"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_cells_that_a_spreadsheet_would_compute_are_text_and_numbers_stay(cell, written):
    assert without_formula(cell) == written
