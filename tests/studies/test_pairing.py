"""Paired differences: right for equal tokens, refused for others, and with error bars that hold."""

import json
import math

import numpy as np
import pytest

from unmask.studies.pairing import BLOCK, block_error, blocks_of, by_trial, of_differences, paired_difference


def saved(path, ids, nats, size=128):
    lines = [
        {"document": i // 500, "ids": ids[i : i + size], "token_nats": nats[i : i + size]}
        for i in range(0, len(ids), size)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_rows_cut_at_other_places_are_still_paired(tmp_path):
    ids, rng = list(range(1000)), np.random.default_rng(0)
    nats = rng.random(1000)
    a = saved(tmp_path / "a", ids, nats.tolist(), 128)
    b = saved(tmp_path / "b", ids[1:], (nats[1:] + 0.25).tolist(), 127)
    found = paired_difference([a], [b])
    assert found is not None
    assert math.isclose(found.difference, 0.25, rel_tol=1e-12)
    assert found.error < 1e-12, "what both find hard cancels"
    assert found.tokens == 999


def test_other_tokens_are_not_paired(tmp_path):
    a = saved(tmp_path / "a", [1, 2, 3], [1.0, 1.0, 1.0])
    assert paired_difference([a], [saved(tmp_path / "b", [1, 2, 4], [1.0, 1.0, 1.0])]) is None
    assert paired_difference([a], [saved(tmp_path / "c", [1], [1.0])]) is None


@pytest.mark.parametrize(("size", "documents"), [(20, 2000), (200, 200), (1280, 60), (5000, 20)])
def test_the_error_of_tokens_that_share_a_document_is_calibrated(size, documents):
    """A third of the spread of a token is its document's. Blocks of 128 tokens made the error 1.3 times too small for
    documents of 200 tokens. Rows of 128 tokens know the document in which they begin, not where it ends."""
    rng = np.random.default_rng(1)
    owner = np.arange(size * documents) // size
    begins = owner[np.arange(len(owner)) // 128 * 128]
    means, errors = [], []
    for _ in range(300):
        values = rng.normal(size=len(owner)) + 0.33 * rng.normal(size=documents)[owner]
        means.append(values.mean())
        errors.append(block_error(values, begins))
    assert 0.88 < np.sqrt(np.mean(np.square(errors))) / np.std(means) < 1.12
    assert np.mean(np.abs(means) < 2 * np.array(errors)) > 0.91


def test_documents_stay_whole_and_few_of_them_are_cut():
    document = np.repeat(np.arange(40), 300)
    block = blocks_of(document)
    assert all(len(set(block[document == one])) == 1 for one in range(40))
    assert np.bincount(block).min() >= BLOCK
    assert len(set(blocks_of(np.repeat([0, 1], 50_000)))) == 98
    assert len(set(blocks_of(np.zeros(800, dtype=int)))) == 8
    assert block_error(np.ones(1), np.zeros(1, dtype=int)) == math.inf


def test_the_error_over_seeds_is_calibrated():
    rng, size = np.random.default_rng(2), 1024
    means, errors = [], []
    for _ in range(2000):
        found = of_differences([rng.normal(size=size) * 0.01 + rng.normal() for _ in range(4)], np.zeros(size))
        means.append(found.difference)
        errors.append(found.error)
    assert 0.9 < np.sqrt(np.mean(np.square(errors))) / np.std(means) < 1.1


def test_trials_are_paired_one_by_one():
    found = by_trial([60.0, 70.0, 50.0], [61.0, 72.0, 53.0])
    assert found is not None
    assert found.difference == 2.0
    assert math.isclose(found.error, 1 / math.sqrt(3)), "what a seed does to both rows cancels"
    assert by_trial([60.0], [61.0]) is None
    assert by_trial([60.0, 61.0], [61.0, 60.0, 59.0]) is None
