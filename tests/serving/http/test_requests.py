"""Controls over HTTP: what the server draws under them is what the sampler draws, alone or among others."""

import json
import re
import threading
from functools import partial
from http.client import HTTPConnection
from itertools import pairwise

import httpx
import pytest
from test_app import events, texts

from unmask.model.passes.whole import logits_at
from unmask.sampling.control import Control
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import fill
from unmask.sampling.patterns.constraint import Constraint
from unmask.sampling.patterns.tokens import anything
from unmask.sampling.tasks.continuation import sample
from unmask.sampling.tasks.infill import infill
from unmask.serving.http import requests as filling
from unmask.serving.http.schema import Allowed, CompletionRequest
from unmask.serving.limits import Limits
from unmask.serving.refusal import Refusal
from unmask.text.prompt.canvas import of_prompt

pytestmark = pytest.mark.slow

PROMPT, TOKENS, SEED = "The lazy ", 14, 7
END = "<|endoftext|>"
STRONG = {"sampler": "remask-rescale:eta=0.5", "steps": 12}
CONTROLS = [
    {"pattern": "(quick|brown|fox| )+[0-9]{2}"},
    {"pattern": "(a|b|c| )+", "exact_length": True, "sampler": "confidence", "steps": 5},
    {"pattern": "The (lazy|quick) [a-z ]+", "whole": True, "temperature": 0.5},
    {"one_of": ["a fox", "the dog", "nothing"]},
    {"form": "<int> dogs, <a|b>", "sampler": "ancestral", "steps": 6},
    {"guidance": 2.5},
    {"guidance": 0, "sampler": "entropy", "steps": 7},
    {"guidance": 1.5, "pattern": "[a-f ]+"},
    STRONG,
    {**STRONG, "pattern": "[a-f]+", "exact_length": True},
    {**STRONG, "sampler": "remask-conf:eta=0.5", "guidance": 2},
    {"sampler": "remask-loop:eta=0.3", "steps": 20},
    {"sampler": "remask-forward-backward", "steps": 9},
    {"sampler": "remask-cap:eta=0.2", "steps": 9, "temperature": 0.8},
]


def body(control: dict, **more) -> dict:
    return {"prompt": PROMPT, "max_tokens": TOKENS, "seed": SEED, "n": 2, **control, **more}


def drawn_alone(model, control: dict, *, seed: int = SEED) -> tuple[list[str], str]:
    """What `sample` makes of the same settings."""
    how = {name: control[name] for name in ("sampler", "steps", "temperature") if name in control}
    asked = {name: value for name, value in control.items() if name not in how}
    asked = Control(**{name: tuple(value) if name == "one_of" else value for name, value in asked.items()})
    length = len(PROMPT) + TOKENS
    found = sample(model, n=2, length=length, prompt=PROMPT, seed=seed, control=asked, until=END, **how)
    return [one.text.removeprefix(PROMPT) for one in found], found[0].law


@pytest.mark.parametrize("control", CONTROLS, ids=json.dumps)
def test_a_completion_under_control_is_what_the_sampler_draws(client, masked, control):
    answer = client.post("/v1/completions", json=body(control)).json()
    wanted, law = drawn_alone(masked, control)
    assert texts(answer) == wanted
    assert answer["law"] == law
    if "pattern" in control:
        before = PROMPT if control.get("whole") else ""
        assert all(re.fullmatch(control["pattern"], before + text) for text in texts(answer))


@pytest.mark.slow
def test_requests_under_different_controls_share_calls_and_each_gets_what_it_gets_alone(serve, slowed, masked):
    model, calls = slowed(0.02)
    address, found = serve(model), {}

    def ask(i: int) -> None:
        sent = body(CONTROLS[i % len(CONTROLS)], seed=i)
        found[i] = httpx.post(f"{address}/v1/completions", json=sent, timeout=120).json()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(CONTROLS) + 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, answer in found.items():
        assert texts(answer) == drawn_alone(masked, CONTROLS[i % len(CONTROLS)], seed=i)[0], CONTROLS[i]
    assert max(calls) > len(CONTROLS), "they share calls"
    assert len(calls) < 6 * TOKENS, "and there are few of them"


def test_an_infilling_under_control_is_what_the_sampler_draws(client, masked):
    text, control = "The [4] fox [3] dog", {"pattern": "[a-z]{3,4}", "guidance": 1.2, "exact_length": True}
    answer = client.post("/v1/infill", json={"text": text, "n": 3, "seed": 5, **control}).json()
    wanted = infill(masked, text, n=3, seed=5, control=Control(**control))
    assert sorted(texts(answer)) == sorted(one.text for one in wanted)
    assert answer["law"] == wanted[0].law
    assert all(re.fullmatch("The [a-z]{4} fox [a-z]{3} dog", one) for one in texts(answer))


def test_a_blank_of_no_given_length_takes_a_length_that_can_match(client):
    sent = {"text": "The ___ fox", "pattern": "[a-f]{5}", "exact_length": True, "n": 3, "seed": 1}
    assert all(re.fullmatch("The [a-f]{5} fox", one) for one in texts(client.post("/v1/infill", json=sent).json()))
    refused = client.post("/v1/infill", json={**sent, "pattern": "[a-f]{9}"})
    assert refused.status_code == 400
    assert "no text of" in refused.json()["error"]["message"]


def test_only_allowed_tokens_stand_where_they_are_listed(client, masked):
    tokenizer, given = masked.tokenizer, masked.tokenizer.encode(PROMPT)
    allowed = {len(given): tokenizer.encode("xyz"), len(given) + 3: tokenizer.encode("0123")}
    listed = [{"position": at, "tokens": ids} for at, ids in allowed.items()]
    answer = client.post("/v1/completions", json=body({"allowed": listed}, n=1)).json()
    free = Constraint(anything(tokenizer.size, mask=masked.mask), allowed=allowed)
    canvas = of_prompt(given, length=len(given) + TOKENS, mask=masked.mask)
    *_, last = fill(partial(logits_at, masked.network), canvas, seed=SEED, options=LogitOptions(constraint=free))
    ids = last.canvas.tokens[0, len(given) :].tolist()
    ids = ids[: ids.index(tokenizer.eos)] if tokenizer.eos in ids else ids
    assert texts(answer) == [tokenizer.decode(ids)]
    assert answer["law"] == "exact, each draw restricted to the allowed tokens"
    with_pattern = body({"allowed": listed, "pattern": "x[a-f]{2}[0-9]+"}, n=4)
    assert all(
        re.fullmatch("x[a-f]{2}[0-3][0-9]*", one)
        for one in texts(client.post("/v1/completions", json=with_pattern).json())
    )


def test_an_autoregressive_model_keeps_to_a_pattern_and_refuses_guidance(serve, causal):
    address = serve(causal)
    sent = {"prompt": "The ", "max_tokens": 9, "seed": 4, "n": 2, "pattern": "[a-f ]+"}
    got = texts(httpx.post(f"{address}/v1/completions", json=sent, timeout=120).json())
    drawn = sample(causal, n=2, length=14, prompt="The ", seed=4, until=END, control=Control(pattern="[a-f ]+"))
    assert got == [one.text.removeprefix("The ") for one in drawn]
    refused = httpx.post(f"{address}/v1/completions", json={"prompt": "The ", "guidance": 2}, timeout=120)
    assert refused.status_code == 400
    assert "guidance needs an mdlm model" in refused.json()["error"]["message"]


WRONG = [
    ({"pattern": "a(b"}, "pattern", "missing ), unterminated subpattern, at column 2"),
    ({"pattern": "(?=a)a"}, "pattern", "lookahead"),
    ({"pattern": "[0-9]{99}"}, "pattern", "no text of 23 tokens can match the pattern '[0-9]{99}'"),
    ({"pattern": "fox", "whole": True}, "pattern", "no way to fill it gets past position 0"),
    ({"pattern": "(a|b)*a(a|b){14}"}, "pattern", "more than 2,000 states"),
    ({"form": "<intt>"}, "form", "Did you mean 'int'?"),
    ({"form": "a <int"}, "form", "at column 3"),
    ({"one_of": ["漢"]}, "one_of", "no text of 23 tokens can match one of the 1 texts"),
    ({"one_of": [3]}, "one_of", "one_of: "),
    ({"pattern": "a", "form": "b"}, None, "exclude each other"),
    ({"whole": True}, None, "need a pattern"),
    ({"allowed": [{"position": 10, "tokens": [10**6]}]}, "allowed", "allowed tokens are ids in 0.."),
    ({"allowed": [{"position": 99, "tokens": [1]}]}, "allowed", "position 99 in allowed is beyond its end"),
    ({"allowed": [{"position": 10, "tokens": [1]}] * 2}, "allowed", "is listed twice"),
    ({"allowed": [{"position": 0, "tokens": [1]}]}, "allowed", "given at position 0 is not among those allowed"),
    ({"allowed": [{"position": 10, "tokens": []}]}, "allowed", "allowed: "),
    ({"guidance": "2"}, "guidance", "guidance: "),
    ({"guidance": 1e9}, "guidance", "guidance: "),
    ({"guidance": 2, "prompt": ""}, "guidance", "give a prompt"),
    ({"sampler": "remask-cap:eta=3"}, None, "must lie in 0..1; saw 3"),
    ({"sampler": "first-hitting:eta=0.5"}, None, "has no fields to set; saw 'eta'"),
    ({"sampler": "remask-cap:etta=0.5"}, None, "Did you mean 'eta'"),
    ({"reject": 5}, None, "reject need a pattern"),
    ({"reject": 99, "pattern": "a+"}, "reject", "reject may be 16 at most"),
    ({"classifier_label": "happy"}, "classifier_label", "this server has no classifier"),
    ({"towards": "happy"}, "towards", "Did you mean 'classifier_label'"),
    ({"classifier": "runs/mood"}, "classifier", "no field is called 'classifier'"),
]


@pytest.mark.parametrize("wrong, param, said", WRONG, ids=lambda value: json.dumps(value)[:50])
def test_a_wrong_control_is_refused_with_its_reason_before_any_call(serve, slowed, wrong, param, said):
    model, calls = slowed(0.0)
    refused = httpx.post(f"{serve(model)}/v1/completions", json=body(wrong), timeout=120)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert said in error["message"]
    assert error["param"] == param
    assert calls == []


def test_the_server_says_of_a_pattern_what_the_sampler_says(client, masked):
    for pattern in ("a(b", "[0-9]{99}"):
        with pytest.raises(ValueError, match=r"pattern|expression") as told:
            sample(masked, length=len(PROMPT) + TOKENS, prompt=PROMPT, control=Control(pattern=pattern))
        refused = client.post("/v1/completions", json=body({"pattern": pattern}, n=1)).json()
        assert refused["error"]["message"] == str(told.value)


def test_steps_tell_what_is_masked_again_and_lead_to_the_final_text(client, masked):
    sent = {"text": "The [14] fox [6]", "n": 2, "seed": 5, "draft": True, "stream": True, "events": "steps", **STRONG}
    (_, begin), *steps, (_, end) = events(client.post("/v1/infill", json=sent))
    rows = [[token["id"] for token in row] for row in begin["candidates"]]
    came, again = {}, 0
    for _, step in steps:
        for token in step["committed"]:
            assert rows[token["candidate"]][token["position"]] is None, "only a blank is filled"
            rows[token["candidate"]][token["position"]] = token["token"]
            came[token["candidate"], token["position"]] = step["call"]
        for place in step.get("masked", ()):
            assert rows[place["candidate"]][place["position"]] is not None, "only a token is masked"
            rows[place["candidate"]][place["position"]] = None
            again += 1
    assert again > 5
    choices = end["choices"]
    assert rows == [[token["id"] for token in choice["tokens"]] for choice in choices]
    for i, choice in enumerate(choices):
        assert {at: token["call"] for at, token in enumerate(choice["tokens"]) if not token["given"]} == {
            at: call for (row, at), call in came.items() if row == i
        }
    assert end["usage"]["completion_tokens"] == 40
    how = {name: STRONG[name] for name in ("sampler", "steps")}
    wanted = infill(masked, sent["text"], n=2, seed=5, **how)
    assert sorted(texts(end)) == sorted(one.text for one in wanted)


def test_a_stream_of_text_sends_nothing_that_may_be_masked_again(client):
    """Every candidate's text comes once, when all of it is there."""
    sent = body(STRONG, stop=["e"])
    whole = client.post("/v1/completions", json=sent).json()
    chunks = [
        chunk["choices"][0] for _, chunk in events(client.post("/v1/completions", json={**sent, "stream": True}))
    ]
    assert sorted(chunk["index"] for chunk in chunks) == [0, 1]
    for chunk in chunks:
        assert chunk["text"] == texts(whole)[chunk["index"]]
        assert chunk["finish_reason"] == whole["choices"][chunk["index"]]["finish_reason"]


def test_guidance_counts_twice_against_what_a_call_may_show(serve, masked):
    address = serve(masked, limits=Limits(positions=2 * (len(PROMPT) + TOKENS)))
    assert httpx.post(f"{address}/v1/completions", json=body({}), timeout=120).status_code == 200
    refused = httpx.post(f"{address}/v1/completions", json=body({"guidance": 2}), timeout=120)
    assert refused.status_code == 400
    assert "each taken twice for guidance" in refused.json()["error"]["message"]


def test_a_pattern_too_large_for_so_much_text_is_refused(client, monkeypatch):
    monkeypatch.setattr(filling, "MOVES", 50 * 50 * 2 * (len(PROMPT) + TOKENS))
    assert client.post("/v1/completions", json=body({"pattern": "[a-f]{0,30}"})).status_code == 200
    refused = client.post("/v1/completions", json=body({"pattern": "[a-f]{0,60}"}))
    assert refused.status_code == 400
    assert "kinds of tokens, too many for 2 texts of 23 tokens" in refused.json()["error"]["message"]


def test_a_pattern_that_takes_long_to_compile_does_not_hold_up_the_others(serve, slowed, monkeypatch):
    model, _ = slowed(0.0)
    address, compiling, go_on = serve(model), threading.Event(), threading.Event()
    real = Control.constraint

    def slow(self, *arguments, **options):
        if self.pattern is not None:
            compiling.set()
            assert go_on.wait(120)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Control, "constraint", slow)
    answers = []
    late = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{address}/v1/completions", json=body({"pattern": "[ab]+"}), timeout=120)
        )
    )
    late.start()
    assert compiling.wait(120)
    assert httpx.post(f"{address}/v1/completions", json=body({}), timeout=120).status_code == 200
    go_on.set()
    late.join()
    assert answers[0].status_code == 200


def test_every_control_is_in_the_description(client):
    described = client.get("/openapi.json").json()["components"]["schemas"]
    for name in ("CompletionRequest", "InfillRequest"):
        fields = described[name]["properties"]
        for control in (
            "pattern",
            "one_of",
            "form",
            "whole",
            "exact_length",
            "allowed",
            "guidance",
            "reject",
            "window",
            "no_repeat",
        ):
            assert fields[control]["description"]
    assert described["Allowed"]["properties"]["tokens"]["items"] == {"type": "integer"}


def test_remasking_samplers_are_among_those_the_server_names(client):
    names = {sampler["name"] for sampler in client.get("/v1/models").json()["data"][0]["samplers"]}
    assert {"remask-cap", "remask-rescale", "remask-conf", "remask-loop", "remask-forward-backward"} < names


def test_a_run_of_tokens_is_not_repeated_where_it_is_asked_for(client):
    asked = {"prompt": "ab", "max_tokens": 12, "seed": 4, "no_repeat": 2}
    answer = client.post("/v1/completions", json=asked).json()
    assert "no-repeat 2" in answer["law"]
    text = "ab" + answer["choices"][0]["text"]
    pairs = {a + b for a, b in pairwise(text) if a != b}
    assert all(text.count(pair) == 1 for pair in pairs)
    assert client.post("/v1/completions", json=asked | {"no_repeat": 1}).status_code == 400


def test_words_without_an_alternative_take_no_forward_pass(client, masked):
    steps = {"stream": True, "events": "steps"}
    sent = body({"pattern": "ab|ac", "draft": True}, n=1, **steps)
    found = events(client.post("/v1/completions", json=sent))
    begin, end = found[0][1], found[-1][1]
    drawn = [token for token in begin["candidates"][0] if not token["given"] and token["id"] is not None]
    assert drawn == [] or [token["call"] for token in drawn] == [0] * len(drawn)
    assert end["calls"] == 1
    assert end["choices"][0]["text"] in ("ab", "ac")
    assert end["usage"]["completion_tokens"] == 3  # two letters and their end
    sure = client.post("/v1/completions", json=body({"pattern": "abc"})).json()
    assert texts(sure) == ["abc", "abc"]
    assert {choice["finish_reason"] for choice in sure["choices"]} == {"stop"}
    assert sure["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 8, "total_tokens": len(PROMPT) + 8}
    filled = client.post("/v1/infill", json={"text": "a[5]b", "pattern": "xyz", "seed": 1}).json()
    assert filled["calls"] == 0
    assert filled["choices"][0]["text"] == "axyzb"


def test_constraints_are_kept_within_a_limit_of_bytes_and_large_ones_are_refused(masked, monkeypatch):
    controls = filling.Controls(masked, Limits())
    asked = [CompletionRequest(prompt="a", pattern=f"[a-{letter}]{{1,9}}") for letter in "bcdefgh"]
    one = controls.constraint(asked[0])
    assert controls.constraint(asked[0]) is one
    size = filling.memory_of(filling.pattern_alone(controls.recipe(asked[0]).control), one)
    assert controls.constraints.used == size
    controls.constraints.limit = 3 * size
    for body in asked:
        controls.constraint(body)
    assert 1 <= len(controls.constraints.values) <= 3
    assert controls.constraints.used <= 3 * size
    long = CompletionRequest(prompt="a", pattern="a" + "(?:)" * 20_000)
    key = filling.pattern_alone(controls.recipe(long).control)
    assert filling.memory_of(key, controls.constraint(long)) > 4 * 80_000  # the pattern itself counts too
    monkeypatch.setattr(filling, "LARGEST", 100_000)
    places = [Allowed(position=i, tokens=[i % 20, 21]) for i in range(300)]
    for body in (CompletionRequest(prompt="a", pattern="[a-z]{900}"), CompletionRequest(prompt="a", allowed=places)):
        with pytest.raises(Refusal, match="MB when compiled; this server allows 0 MB"):
            controls.constraint(body)


def test_a_pattern_of_a_client_that_has_left_is_given_up(serve, masked, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def endless(self, pattern, check):
        begun.set()
        try:
            while True:
                check()
                threading.Event().wait(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(filling.Controls, "compile", endless)
    client = HTTPConnection(serve(masked).removeprefix("http://"))
    client.request(
        "POST", "/v1/completions", json.dumps(body({"pattern": "a"})), {"Content-Type": "application/json"}
    )
    assert begun.wait(120)
    client.close()
    assert ended.wait(120)
