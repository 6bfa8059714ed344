"""The likelihood of blanks against the sum over all ways to hide them."""

from itertools import combinations
from math import comb

import pytest
import torch

import tiny
import unmask
from unmask.errors import UserError
from unmask.sampling import score
from unmask.sampling.score import log_likelihood, log_likelihoods


def enumerated(model, tokens, free, unseen=()):
    """−Σ_M ce(M)/(k C(f, k)) over every set M of the free positions: the bound, with nothing left to chance."""
    total = 0.0
    for k in range(1, len(free) + 1):
        for hidden in combinations(free, k):
            x_t = tokens.clone()
            x_t[[*hidden, *unseen]] = model.mask
            log_p = model.log_probs(x_t[None])[0]
            total += sum(log_p[i, tokens[i]].item() for i in hidden) / (k * comb(len(free), k))
    return total


def test_the_estimate_is_of_the_bound_given_what_is_frozen(model):
    tokens = torch.tensor(model.tokenizer.encode("bad.a face"))
    free = [1, 4, 5, 9]
    frozen = torch.ones(10, dtype=torch.bool)
    frozen[free] = False
    found = log_likelihood(model, tokens, frozen, passes=4000)
    assert found.error < 0.2
    assert abs(found.nats - enumerated(model, tokens, free)) < 4 * found.error


def test_one_blank_token_needs_no_estimate(model):
    tokens = torch.tensor(model.tokenizer.encode("bad."))
    found = log_likelihood(model, tokens, torch.tensor([True, True, False, True]), passes=2)
    assert found.nats == pytest.approx(enumerated(model, tokens, [2]), abs=1e-4)
    assert found.error == pytest.approx(0, abs=1e-5)


def test_what_is_unseen_is_a_mask_to_the_network_whatever_it_holds(model):
    frozen = torch.tensor([False, True, True, False, False])
    tokens = torch.tensor(model.tokenizer.encode("badge"))
    found = log_likelihood(model, tokens, frozen, unseen=frozen, passes=2000)
    other = torch.tensor(model.tokenizer.encode("bh.ge"))
    assert found == log_likelihood(model, other, frozen, unseen=frozen, passes=2000)
    assert abs(found.nats - enumerated(model, tokens, [0, 3, 4], unseen=[1, 2])) < 4 * found.error


def test_texts_are_compared_with_the_same_random_numbers_wherever_their_blanks_are(model, monkeypatch):
    run, shown = model.network.run, []

    def watched(p):
        shown.append(p.x)
        return run(p)

    monkeypatch.setattr(model.network, "run", watched)
    tokens = torch.tensor(model.tokenizer.encode("bad.bad."))
    for places in ([0, 3], [4, 6]):
        frozen = torch.ones(8, dtype=torch.bool)
        frozen[places] = False
        log_likelihood(model, tokens, frozen, passes=16)
    first, second = (x_t == model.mask for x_t in shown)
    assert torch.equal(first[:, [0, 3]], second[:, [4, 6]])
    assert first.any()


@pytest.mark.slow
def test_the_sum_over_a_trace_is_too_high_to_rank_by(model):
    found = unmask.infill(model, "b[3]d", n=120, passes=2)
    summed = torch.tensor([sum(event.log_prob for event in one.trace) for one in found])
    bound = torch.tensor([enumerated(model, torch.tensor(one.tokens), [1, 2, 3]) for one in found])
    gap = summed - bound
    assert gap.mean() > 3 * gap.std() / len(gap) ** 0.5


@pytest.mark.parametrize("objective", ["d3pm", "sedd"])
def test_other_objectives_are_scored_by_their_own_bound(tmp_path, objective):
    other = tiny.model(tmp_path / "m", objective=objective)
    tokens = torch.tensor(other.tokenizer.encode("bad."))
    frozen = torch.tensor([True, False, False, True])
    found = log_likelihood(other, tokens, frozen, passes=64)
    assert torch.isfinite(torch.tensor([found.nats, found.error])).all()
    assert log_likelihood(other, tokens, frozen, passes=64) == found


def test_a_network_that_looks_at_the_noise_level_is_told_it(tmp_path, monkeypatch):
    timed = tiny.model(tmp_path / "m", timed=True)
    run, told = timed.network.run, []

    def watched(p):
        told.append(p.sigma)
        return run(p)

    monkeypatch.setattr(timed.network, "run", watched)
    tokens = torch.tensor(timed.tokenizer.encode("bad."))
    found = log_likelihood(timed, tokens, torch.tensor([True, False, False, True]), passes=16)
    assert found.nats < 0
    assert (torch.cat(told) > 0).all()


def test_an_error_needs_two_looks(model):
    with pytest.raises(UserError, match="at least 2 forward passes"):
        log_likelihood(model, torch.tensor([1]), torch.tensor([False]), passes=1)


def test_texts_far_behind_the_best_get_a_quarter_of_the_forward_passes(model, monkeypatch):
    texts = torch.stack([torch.tensor(model.tokenizer.encode(text)) for text in ("bad.", "bead", "bad.")])
    frozen = torch.tensor([True, False, False, False])
    run, rows = model.network.run, [0]

    def counted(p):
        rows[0] += len(p.x)
        return run(p)

    monkeypatch.setattr(model.network, "run", counted)
    monkeypatch.setattr(score, "FAR", 0.0)
    found = log_likelihoods(model, texts, frozen, passes=32)
    best = max(range(3), key=lambda i: found[i].nats)
    close = sum(one.nats == found[best].nats for one in found)  # the best, and the same text again
    assert rows[0] == 3 * 8 + (2 * 24 if close == 2 else 0)
    rows[0] = 0
    monkeypatch.setattr(score, "FAR", 1e9)
    whole = log_likelihoods(model, texts, frozen, passes=32)
    assert rows[0] == 3 * 32
    assert whole[0] == whole[2]


def test_texts_scored_together_have_the_bounds_they_have_alone(model):
    texts = torch.stack([torch.tensor(model.tokenizer.encode(text)) for text in ("bad.", "cafe", "dead")])
    frozen = torch.tensor([False, True, False, False])
    for text, one in zip(texts, log_likelihoods(model, texts, frozen, passes=4000), strict=True):
        assert abs(one.nats - enumerated(model, text, [0, 2, 3])) < 4 * one.error + 1e-6
