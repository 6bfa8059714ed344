"""The server, with an encoder: the same texts as Python, between the same special tokens."""

import re

import httpx
import pytest
from servers import serving

from model.encoders import CLS, MASK, SEP, SPECIAL, small_bert
from unmask import infill, sample

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:this model was trained as a masked")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_bert(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def client(model):
    with serving(model, name="bert") as address, httpx.Client(base_url=address, timeout=120) as found:
        yield found


def asked(client, path, **body):
    answer = client.post(path, json={"model": "bert", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_completions_are_those_of_python(model, client):
    body = {"prompt": "the old man", "max_tokens": 8, "seed": 3, "n": 2}
    found = [one["text"] for one in asked(client, "/v1/completions", **body)["choices"]]
    wanted = sample(model, n=2, length=1 + 3 + 8 + 1, prompt="the old man", seed=3)
    assert found == [one.text.removeprefix("the old man") for one in wanted]


def test_a_pattern_ends_before_the_frame_does(client):
    body = {"prompt": "the", "max_tokens": 12, "pattern": "( big)? (cat|dog)", "seed": 1, "n": 4}
    for one in asked(client, "/v1/completions", **body)["choices"]:
        assert one["text"] in (" cat", " dog", " big cat", " big dog")


@pytest.mark.parametrize("text", ["the [1] sat on the [2] .", "The [1] SAT on the [2]."])
def test_infilling_is_that_of_python(text, model, client):
    found = asked(client, "/v1/infill", text=text, seed=5)
    (wanted,) = infill(model, text, seed=5)
    start, middle, end = re.split(r" \[\d\]", text)
    assert re.fullmatch(f"{start} .+{middle} .+{re.escape(end)}", wanted.text)
    assert [one["text"] for one in found["choices"]] == [wanted.text]
    ids = [token["id"] for token in found["choices"][0]["tokens"]]
    assert (ids[0], ids[-1]) == (CLS, SEP)
    assert not SPECIAL & set(ids[1:-1])


def test_sets_of_allowed_tokens_leave_the_special_ones_out_elsewhere(client):
    body = {"tokens": [CLS, *[None] * 6, SEP], "allowed": [{"position": 2, "tokens": [10, 11]}], "n": 8, "seed": 1}
    for one in asked(client, "/v1/infill", **body)["choices"]:
        ids = [token["id"] for token in one["tokens"]]
        assert ids[2] in (10, 11)
        assert not SPECIAL & set(ids[1:-1])


def test_a_score_counts_the_text_and_not_its_frame(model, client):
    text = "the old man saw the dog ."
    (found,) = asked(client, "/v1/score", texts=[text], passes=8)["data"]
    assert found["tokens"] == len(model.tokenizer.encode(text))
    assert found["nats"] > 0
    assert MASK not in model.tokenizer.encode(text)
