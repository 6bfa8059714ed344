"""Paired differences: right for equal tokens, refused for others, and with error bars that hold."""

import json
import math

import numpy as np

from unmask.studies.pairing import BLOCK, block_error, by_trial, of_differences, paired


def saved(path, ids, nats, size=128):
    lines = [{"ids": ids[i : i + size], "token_nats": nats[i : i + size]} for i in range(0, len(ids), size)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_rows_cut_at_other_places_are_still_paired(tmp_path):
    ids, rng = list(range(1000)), np.random.default_rng(0)
    nats = rng.random(1000)
    a = saved(tmp_path / "a", ids, nats.tolist(), 128)
    b = saved(tmp_path / "b", ids[1:], (nats[1:] + 0.25).tolist(), 127)
    found = paired([a], [b])
    assert found is not None
    assert math.isclose(found.difference, 0.25, rel_tol=1e-12)
    assert found.error < 1e-12, "what both find hard cancels"
    assert found.tokens == 999


def test_other_tokens_are_not_paired(tmp_path):
    a = saved(tmp_path / "a", [1, 2, 3], [1.0, 1.0, 1.0])
    assert paired([a], [saved(tmp_path / "b", [1, 2, 4], [1.0, 1.0, 1.0])]) is None
    assert paired([a], [saved(tmp_path / "c", [1], [1.0])]) is None


def test_the_error_of_dependent_tokens_is_calibrated():
    """Differences that hang together for some tokens: what is printed is the spread over many texts."""
    rng = np.random.default_rng(1)
    means, errors = [], []
    for _ in range(400):
        steps = rng.normal(size=64 * BLOCK + 31)
        values = np.convolve(steps, np.ones(32) / 32, "valid")  # dependent over 32 tokens
        means.append(values.mean())
        errors.append(block_error(values))
    spread = np.std(means)
    assert 0.85 < np.sqrt(np.mean(np.square(errors))) / spread < 1.15
    naive = np.sqrt(1 / 32 / (64 * BLOCK))
    assert spread > 3 * naive, "tokens are dependent in this test"
    assert 0.92 < np.mean(np.abs(means) < 1.96 * np.array(errors)) <= 0.98


def test_the_error_over_seeds_is_calibrated():
    rng = np.random.default_rng(2)
    means, errors = [], []
    for _ in range(2000):
        found = of_differences([rng.normal(size=8 * BLOCK) * 0.01 + rng.normal() for _ in range(4)])
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
