"""Several adapters over one served base, chosen by the name of the model."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from torch import nn

import tiny
from serving.servers import serving
from unmask.errors import UserError
from unmask.model.adapter import Adapter, LowRankUpdates
from unmask.model.adapter_files import with_adapter, write_adapter
from unmask.serving.http.served import served_models
from unmask.serving.settings import ServerSettings


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def adapters(base):
    """Two adapters that change much."""
    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        updates = LowRankUpdates(base.network, Adapter(rank=2, alpha=8))
        for parameter in updates.parameters():
            nn.init.normal_(parameter, std=0.5)
        folder = base.folder.parent / f"adapter{seed}"
        folder.mkdir()
        write_adapter(folder, updates, str(base.folder))
        folders.append(folder)
    return folders


def ask(address, name, seed):
    body = {"model": name, "prompt": "ab", "max_tokens": 8, "seed": seed}
    reply = httpx.post(f"{address}/v1/completions", json=body, timeout=120).json()
    assert reply["model"] == (name or "tiny")
    return reply["choices"][0]["text"]


@pytest.mark.slow
def test_every_request_gets_the_answer_of_its_own_model_whoever_else_asks(base, adapters):
    names = ["tiny", "one", "two", ""]
    alone = {}
    for name, model in zip(names[:3], (base, *(with_adapter(base, folder) for folder in adapters)), strict=True):
        with serving(model) as address:
            alone[name] = [ask(address, "", seed) for seed in range(4)]
    assert len({tuple(texts) for texts in alone.values()}) == 3, "the adapters change what is drawn"
    pairs = tuple(f"{name}={folder}" for name, folder in zip(("one", "two"), adapters, strict=True))
    with serving(base, adapter=pairs) as address:
        cases = [(name, seed) for seed in range(4) for name in names]
        with ThreadPoolExecutor(len(cases)) as pool:
            together = list(pool.map(lambda case: ask(address, *case), cases))
        for (name, seed), text in zip(cases, together, strict=True):
            assert text == alone[name or "tiny"][seed], (name, seed)
        listed = httpx.get(f"{address}/v1/models", timeout=120).json()["data"]
        assert [one["id"] for one in listed] == ["tiny", "one", "two"]
        assert httpx.get(f"{address}/v1/models/two", timeout=120).json()["id"] == "two"
        texts = {"texts": ["ab", "cd"], "passes": 8, "seed": 0}
        scores = [
            httpx.post(f"{address}/v1/score", json={**texts, "model": name}, timeout=120).json() for name in names[:3]
        ]
        assert len({one["data"][0]["nats"] for one in scores}) == 3
        missing = httpx.post(f"{address}/v1/completions", json={"model": "three", "prompt": "a"}, timeout=120)
        assert missing.status_code == 404
        assert "Known: one, tiny, two." in missing.json()["error"]["message"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("poems",), "given as NAME=FOLDER, such as poems=runs/poems; saw 'poems'"),
        (("=x",), "given as NAME=FOLDER"),
        (("a=x", "a=y"), "two adapters have the same name"),
        (("tiny=x",), "has the name of the base"),
    ],
)
def test_adapters_that_cannot_be_served_are_refused(base, given, words):
    with pytest.raises(UserError, match=words):
        served_models(base, ServerSettings(name="tiny", adapter=given))


def test_an_adapter_of_another_network_is_refused(adapters, tmp_path):
    other = tiny.model(tmp_path / "sedd", objective="sedd")
    updates = LowRankUpdates(other.network, Adapter(rank=2))
    (tmp_path / "wide").mkdir()
    write_adapter(tmp_path / "wide", updates, str(other.folder))
    ours = tiny.model(tmp_path / "tiny")
    with pytest.raises(UserError, match="has no such linear layer: it belongs to another base"):
        served_models(ours, ServerSettings(name="tiny", adapter=(f"wide={tmp_path / 'wide'}",)))
