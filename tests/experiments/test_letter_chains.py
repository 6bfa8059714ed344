"""Markov chains of letters, against counts by hand."""

from importlib.util import module_from_spec, spec_from_file_location
from math import log2
from pathlib import Path

import numpy as np
import pytest

FILE = spec_from_file_location("letter_chains", Path(__file__).parents[2] / "experiments" / "letter_chains.py")
letter_chains = module_from_spec(FILE)
FILE.loader.exec_module(letter_chains)


def test_letters_are_read_and_counted(tmp_path):
    (tmp_path / "a.txt").write_text("ab\n<|endoftext|>\nz\n<|endoftext|>\n")
    assert letter_chains.read_letters(tmp_path / "a.txt").tolist() == [1, 2, 0, 26]
    train, test = np.array([1, 2, 1, 2, 1, 3]), np.array([1, 2, 3])
    whole = 6 + 27 * 0.1
    alone = [3.1 / whole, 2.1 / whole, 1.1 / whole]
    assert letter_chains.bits_per_letter(letter_chains.chain(train, 0), test, 0) == pytest.approx(
        -sum(map(log2, alone)) / 3
    )
    after = [2.1 / (3 + 2.7), 0.1 / (2 + 2.7)]  # b after a twice of three times; c after b never
    assert letter_chains.bits_per_letter(letter_chains.chain(train, 1), test, 1) == pytest.approx(
        -sum(map(log2, after)) / 2
    )


def test_samples_are_read_as_the_text_is():
    assert letter_chains.numbers_of(" ab<|1|>z ").tolist() == [1, 2, 0, 26]


def test_a_chain_writes_by_its_own_law():
    train = np.array([1, 2, 3] * 500)
    text = letter_chains.written(letter_chains.chain(train, 1), 1, 30, np.random.default_rng(0))
    steps = set(zip(text[5:].tolist(), text[6:].tolist(), strict=False))
    assert len(text) == 30
    assert len(steps & {(1, 2), (2, 3), (3, 1)}) == 3
