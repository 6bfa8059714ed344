"""Molecules are valid, distinct and new by their canonical form, where rdkit is installed."""

import pytest

from unmask.evaluation.quality.molecules import assess_molecules

pytestmark = pytest.mark.slow


def test_two_spellings_of_a_molecule_are_one():
    pytest.importorskip("rdkit")
    found = assess_molecules(["CCO", "OCC", "C1CC", "c1ccccc1"], ["C(O)C"])
    assert found == {"valid": 0.75, "distinct": pytest.approx(2 / 3), "new": 0.5}
