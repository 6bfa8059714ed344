"""Published models are served with their authors' settings: shifted, in blocks, without a mask, without an end."""

import httpx
import pytest

from model.published import complete
from unmask.model.checkpoint import load
from unmask.sampling.tasks.continuation import sample

BLOCKS = {"unmask_dialect": "a2d-bd3lm", "block_size": 8}


@pytest.mark.parametrize("name", ["dream", "a2d_qwen3", "fast_dllm_v2", "duo"])
def test_a_published_model_completes_and_scores_over_http(name, serve, tmp_path):
    model = load(complete(name, tmp_path / "m", **BLOCKS if name == "a2d_qwen3" else {}))
    steps = {"steps": 4} if "steps" in model.sampling else {}
    body = {"prompt": "AGL", "max_tokens": 7, "seed": 3, **steps}
    with httpx.Client(base_url=serve(model), timeout=60) as client:
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
        score = client.post("/v1/score", json={"texts": ["AGLVSE"]}).raise_for_status().json()
    total = answer["usage"]["prompt_tokens"] + 7
    one = sample(model, prompt="AGL", length=total, seed=3, until="<|endoftext|>", **steps)[0]
    assert answer["choices"][0]["text"] == one.text.removeprefix("AGL")
    assert answer["law"] == one.law
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    assert score["data"][0]["nats"] > 0
