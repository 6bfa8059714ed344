"""Classifiers of strangers: hand-made notes are refused in words, mutated ones are used or refused."""

import contextlib
import json
import re
import shutil

import pytest

from attack.classifiers import attempt, bases, guided, predicting
from confined import confined, failures
from unmask.cli.main import main

pytestmark = pytest.mark.slow

# Two claims that took all memory, or all time, when they were believed.
REFUSED = {
    "a length of 10^9": ({"reading": {"length": 10**9, "pool": "padded"}}, "length"),
    "a length of 2^62": ({"reading": {"length": 2**62}}, "length"),
    "five million labels": ({"answer": {"labels": [""] * 5_000_000}}, "labels|larger|lists"),
    "equal labels": ({"answer": {"labels": ["a", "a"]}}, "label"),
    "minus one separators": ({"texts": {"separators": -1}}, "separators"),
    "a list of texts": ({"texts": [1, 2]}, "table"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_note_is_refused_in_words(name, tmp_path):
    changes, told = REFUSED[name]
    target = shutil.copytree(bases() / "labels", tmp_path / "labels")
    note = json.loads((target / "classify.json").read_text())
    for key, value in changes.items():
        note[key] = note[key] | value if isinstance(value, dict) else value
    (target / "classify.json").write_text(json.dumps(note))
    said = tmp_path / "said"

    def use() -> None:

        with said.open("w") as file, contextlib.redirect_stderr(file):
            assert main(predicting(bases(), target)) == 2

    assert confined(use, memory=700 << 20, seconds=10) == "done"
    assert re.search(told, said.read_text()), said.read_text()


@pytest.mark.parametrize("name", ["labels", "numbers", "guide"])
def test_what_is_damaged_here_works_when_it_is_whole(name, tmp_path):
    target = shutil.copytree(bases() / name, tmp_path / name)
    command = guided(bases(), target) if name == "guide" else predicting(bases(), target)

    def use() -> None:
        assert main(command) == 0

    assert confined(use) == "done"


def test_thirty_mutations_are_used_or_refused_in_words(tmp_path):
    assert failures(attempt, range(1, 31), tmp_path) == {}


@pytest.mark.attack
@pytest.mark.parametrize("start", range(1001, 1201, 50))
def test_mutations_are_used_or_refused_in_words(start, tmp_path):
    assert failures(attempt, range(start, start + 50), tmp_path) == {}
