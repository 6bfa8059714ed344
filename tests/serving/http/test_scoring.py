"""Scores against enumeration, and the error bar against many seeds."""

import statistics
from functools import partial

import httpx
import pytest
import torch

from unmask.diffusion.bound import exact_bound
from unmask.model.passes.whole import logits_at

TEXTS = ["lazy fox", "The dog"]


def score(client, **body):
    response = client.post("/v1/score", json=body)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def test_a_score_lies_within_its_error_bar_of_the_enumerated_bound(client, masked):
    found = score(client, texts=TEXTS, passes=64)
    for text, one in zip(TEXTS, found, strict=True):
        ids = torch.tensor(masked.tokenizer.encode(text))
        truth = float(exact_bound(partial(logits_at, masked.network), ids, mask=masked.mask))
        assert abs(one["nats"] - truth) < 4 * one["standard_error"]
        assert one["standard_error"] < 0.1 * truth
        assert one["nats"] == pytest.approx(one["nats_per_token"] * len(ids))
        assert one["tokens"] == len(ids)


@pytest.mark.slow
def test_the_error_bar_is_what_another_seed_changes(client):
    runs = [score(client, texts=TEXTS[:1], seed=seed)[0] for seed in range(40)]
    spread = statistics.stdev(one["nats"] for one in runs)
    told = statistics.mean(one["standard_error"] for one in runs)
    assert 0.5 * spread < told < 2 * spread


def test_a_text_scores_the_same_whatever_stands_beside_it(client):
    assert score(client, texts=TEXTS)[1]["nats"] == score(client, texts=TEXTS[1:])[0]["nats"]


def test_an_autoregressive_models_score_is_exact(serve, causal):
    with httpx.Client(base_url=serve(causal), timeout=120) as client:
        (found,) = score(client, texts=["lazy fox"])
    ids = [causal.tokenizer.bos, *causal.tokenizer.encode("lazy fox")]
    log_p = causal.log_probs(torch.tensor([ids]))[0]
    truth = -float(sum(log_p[i, ids[i + 1]] for i in range(len(ids) - 1)))
    assert found["nats"] == pytest.approx(truth, rel=1e-4)
    assert found["standard_error"] == 0
