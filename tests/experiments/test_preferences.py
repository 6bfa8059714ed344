"""DPO with `unmask.log_likelihood` moves the right way, with every seed."""

import runpy
from pathlib import Path

import pytest

import tiny
import unmask

DPO = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "preferences.py"))
TRAINED = [("cab a", "cab e"), ("fed a", "fed e"), ("bad a", "bad e")]
HELD_OUT = [("had a", "had e"), ("face a", "face e")]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_margins_of_pairs_that_were_never_trained_rise(tmp_path, seed):
    folder = tiny.checkpoint(tmp_path / "base")
    model, reference = unmask.load(folder), unmask.load(folder)
    before = DPO["measured"](model, HELD_OUT, passes=16)
    DPO["tune"](model, reference, TRAINED, steps=20, seed=seed, beta=0.3, lr=1e-2)
    after = DPO["measured"](model, HELD_OUT, passes=16)
    assert after["margin"] > before["margin"] + 1
    assert DPO["measured"](reference, HELD_OUT, passes=16) == before


def test_the_preferred_endings_are_those_that_stories_finds_less_likely():
    pairs = DPO["pairs_of"](DPO["HELD_OUT"])
    assert pairs[0] == ("The bear was very sad.", "The bear was very happy.")
    assert not {better for better, _ in pairs} & {better for better, _ in DPO["pairs_of"](DPO["TRAINED"])}
