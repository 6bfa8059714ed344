"""Bodies that nobody would send by hand: 2xx or 4xx, never 5xx, and as the API's description says."""

import json

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.slow

CALM = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/infill", "/v1/score", "/v1/classify"]
FIELDS = [
    *("model", "prompt", "suffix", "max_tokens", "n", "temperature", "top_p", "top_k", "seed", "stop", "stream"),
    *("stream_options", "sampler", "steps", "events", "draft", "text", "tokens", "texts", "passes", "other"),
    *("pattern", "one_of", "form", "whole", "exact_length", "allowed", "guidance", "reject", "position"),
    *("logprobs", "echo", "best_of", "frequency_penalty", "logit_bias", "user", "no_repeat", "window", "stride"),
]
ODD = [
    0,
    -1,
    1,
    3,
    10**30,
    -(2**63),
    1e308,
    0.5,
    True,
    None,
    "",
    "a [2] b",
    "___",
    "\\[",
    "entropy",
    "remask-conf",
    "[a-f]+|(",
    "<int> <word>",
    "(.*a){3}",
    "\ud800",
    "\x00",
]
VALUES = st.recursive(
    st.sampled_from(ODD) | st.text(max_size=20) | st.floats() | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5) | VALUES


ADDRESSES = [*PATHS, "/v1/models", "/v1/models/{model_id}", "/health", "/ready", "/metrics"]


def test_every_address_of_the_description_is_tried(client):
    assert sorted(client.get("/openapi.json").json()["paths"]) == sorted(ADDRESSES)


# Hypothesis blames the strategy when the server's thread uses `random` while a case is being made.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("path", ADDRESSES)
def test_the_server_does_what_its_description_says(address, path):
    description = schemathesis.openapi.from_url(f"{address}/openapi.json")
    (operation,) = [description[path][method] for method in description[path]]

    @CALM
    @given(case=operation.as_strategy())
    def all_cases(case):
        case.call_and_validate(checks=CHECKS, timeout=120)

    all_cases()


@pytest.mark.parametrize("events", ["text", "steps"])
@pytest.mark.parametrize("path, text", [("/v1/completions", {"prompt": "The "}), ("/v1/infill", {"text": "a [3]"})])
def test_streams_are_as_the_description_says(address, path, text, events):
    operation = schemathesis.openapi.from_url(f"{address}/openapi.json")[path]["POST"]
    body = {**text, "stream": True, "events": events, "sampler": "remask-cap:eta=0.5", "steps": 9}
    operation.Case(body=body, media_type="application/json").call_and_validate(checks=CHECKS, timeout=120)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(PATHS), body=BODIES)
def test_no_body_makes_the_server_fail(client, path, body):
    response = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        assert response.json()["error"]["message"]
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")


FULL = {"prompt": "The ", "max_tokens": 44}
EDGES = [  # the field, what is allowed and what is not, and the request around it
    ("n", 32, 33, "/v1/completions", FULL),
    ("max_tokens", 44, 45, "/v1/completions", FULL),
    ("steps", 2000, 2001, "/v1/completions", {**FULL, "sampler": "ancestral"}),
    ("reject", 16, 17, "/v1/completions", {**FULL, "pattern": ".*"}),
    ("pattern", "(ab){0,900}", "(ab){0,1100}", "/v1/completions", FULL),
    ("logprobs", 20, 21, "/v1/completions", FULL),
    ("stop", ["qq"] * 16, ["qq"] * 17, "/v1/completions", FULL),
    ("prompt", ["The "] * 32, ["The "] * 33, "/v1/completions", {"max_tokens": 2}),
    ("suffix", "a" * 40, "a" * 41, "/v1/completions", {"prompt": "The ", "max_tokens": 4}),
    ("temperature", 2, 2.01, "/v1/completions", FULL),
    ("seed", 2**63 - 1, 2**63, "/v1/completions", FULL),
    ("guidance", 100, 100.1, "/v1/completions", FULL),
    ("text", "a[47]", "a[48]", "/v1/infill", {}),
    ("tokens", [3] + [None] * 47, [3] + [None] * 48, "/v1/infill", {}),
    ("texts", ["The "] * 32, ["The "] * 33, "/v1/score", {"passes": 2}),
    ("passes", 64, 65, "/v1/score", {"texts": ["The "]}),
]


@pytest.mark.parametrize("field, most, more, path, body", EDGES)
def test_a_request_at_its_limit_is_answered_and_one_beyond_it_is_refused(client, field, most, more, path, body):
    at, beyond = (client.post(path, json={**body, field: value}) for value in (most, more))
    assert at.status_code == 200, at.text
    assert beyond.status_code == 400, beyond.text


@pytest.mark.parametrize("size, status", [(1_000_000, 400), (1_000_001, 413)])
def test_a_body_of_a_million_bytes_is_read_and_one_more_is_not(client, size, status):
    body = b'{"promt": 1}'.ljust(size)
    headers = {"content-type": "application/json"}
    assert client.post("/v1/completions", content=body, headers=headers).status_code == status


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200))
def test_no_bytes_make_the_server_fail(client, path, body):
    assert client.post(path, content=body, headers={"content-type": "application/json"}).status_code == 400


def test_the_server_is_still_well(address):
    assert httpx.get(f"{address}/health", timeout=120).status_code == 200
