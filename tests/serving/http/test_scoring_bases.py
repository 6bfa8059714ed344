"""N stands for no base: /v1/score gives it to the network and does not count it."""

import httpx
import pytest

from contracts.members import network_of
from unmask.model.backbones.caduceus import CaduceusSpec
from unmask.model.checkpoint import load, save
from unmask.text.tokens import vocabulary

pytestmark = pytest.mark.slow


def test_the_tokens_are_those_that_are_scored(serve, tmp_path):
    dna = vocabulary.dna()
    network = network_of(CaduceusSpec(vocab=dna.size, length=16, width=16, blocks=1))
    model = load(save(tmp_path / "m", network, mask=dna.mask, objective="mlm", tokenizer=dna))
    with httpx.Client(base_url=serve(model), timeout=120) as client:
        answer = client.post("/v1/score", json={"texts": ["ACGNN"], "passes": 2})
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"][0]["tokens"] == 3
        refused = client.post("/v1/score", json={"texts": ["NNN"], "passes": 2})
        assert refused.status_code == 400
        assert "no letter that is scored" in refused.text
