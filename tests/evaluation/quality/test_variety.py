"""Variety and copies, against counting by hand and against plain search."""

import math

import numpy as np
import pytest

from unmask.evaluation.quality.assessment import SampleText, assess
from unmask.evaluation.quality.copies import copies, hashes
from unmask.evaluation.quality.variety import collapse_warning, distinct, row_entropy, variety


def test_entropy_is_that_of_the_counts():
    assert row_entropy(np.array([1, 1, 2, 3])) == pytest.approx(1.5 * math.log(2))
    assert row_entropy(np.array([7, 7, 7])) == 0
    assert row_entropy(np.arange(8)) == pytest.approx(math.log(8))


def test_repetition_and_overlap_count_grams_of_four():
    found = variety([np.array([1, 2, 3, 4, 1, 2, 3, 4]), np.array([9, 1, 2, 3, 4]), np.array([5])])
    assert found.repetition.value == pytest.approx((1 / 5 + 0 + 0) / 3)
    assert found.self_overlap.value == pytest.approx((2 / 5 + 1 / 2 + 0) / 3)
    assert found.distinct[1].value == pytest.approx(6 / 14)
    assert found.distinct[4].value == pytest.approx(5 / 7)


def test_the_error_of_distinct_is_that_of_leaving_out_each_sample():
    draws = np.random.default_rng(1)
    rows = [draws.integers(0, 6, 9) for _ in range(7)]
    without = [distinct([row for j, row in enumerate(rows) if j != i], 2).value for i in range(7)]
    error = math.sqrt(np.square(np.array(without) - np.mean(without)).sum() * 6 / 7)
    assert distinct(rows, 2).standard_error == pytest.approx(error)


def longest_by_search(sample: str, training: list[str]) -> int:
    words = sample.split()
    spans = [(i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    known = [f" {' '.join(text.split())} " for text in training]
    return max((j - i for i, j in spans if any(f" {' '.join(words[i:j])} " in text for text in known)), default=0)


def test_the_longest_copy_is_what_plain_search_finds():
    draws = np.random.default_rng(2)
    training = [" ".join(draws.choice(list("abc"), 60)) for _ in range(3)]
    samples = [" ".join(draws.choice(list("abcd"), n)) for n in (1, 7, 20, 40)]
    samples += [training[1][20:70], "d d d", ""]
    for sample in samples:
        assert copies([sample], training).most == longest_by_search(sample, training)


def test_a_copy_does_not_reach_across_two_documents():
    found = copies(["one two three four", "x"], ["zero one two", "three four five"])
    assert (found.most, found.text) == (2, "one two")


def test_the_copied_share_is_of_words_inside_runs_of_eight():
    eight = "a b c d e f g h"
    assert copies([f"{eight} x y", "x y z"], [f"z {eight}"]).share.value == pytest.approx(8 / 10 / 2)
    assert copies(["a b c d e f g", "x"], [eight]).share.value == 0


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_equal_windows_and_only_they_have_equal_hashes(n):
    values = np.random.default_rng(3).integers(0, 2**64, 3, np.uint64)[np.random.default_rng(4).integers(0, 3, 80)]
    found = hashes(values, n)
    pieces = [tuple(values[i : i + n]) for i in range(80 - n + 1)]
    assert len(found) == len(pieces)
    same = found[:, None] == found[None]
    assert (same == np.array([[a == b for b in pieces] for a in pieces])).all()


def test_a_collapse_of_entropy_is_told():
    dull, rich = [np.array([1, 1, 1, 1, 2, 1, 1, 1])] * 2, [np.arange(8)] * 2
    assert "collapsed" in str(collapse_warning(row_entropy(dull[0]), dull, None))
    assert collapse_warning(row_entropy(rich[0]), rich, None) is None
    assert "real text" in str(collapse_warning(1.7, rich, 2.0))
    assert collapse_warning(1.9, rich, 2.0) is None


def test_samples_are_compared_with_training_text_as_long():
    samples = [SampleText(("a a a a a a",)), SampleText(("b b b b",))]
    found = assess(samples, None, training=["one two three four five six seven", "eight nine ten eleven"])
    assert found["entropy_of_training_text"] == pytest.approx((math.log(6) + math.log(4)) / 2)
    assert "real text" in found["warning"]
    assert found["units"] == "words"
