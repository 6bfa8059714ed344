"""The API over real HTTP: answers, streams, and what is refused."""

import json
import logging
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from models import TEXT, saved

from contracts.members import model_of
from unmask.diffusion.diffusion_lm import DiffusionLM
from unmask.diffusion.plaid import Plaid
from unmask.diffusion.ssd_lm import SSDLM
from unmask.model.checkpoint import load
from unmask.sampling.recipe import Recipe
from unmask.sampling.tasks.continuation import generate, sample
from unmask.sampling.tasks.infill import Infill, infill
from unmask.serving.limits import Limits
from unmask.text.prompt.template import parse
from unmask.text.tokens.vocabulary import bpe

COMPLETION = {"prompt": "The lazy ", "max_tokens": 12, "n": 3, "seed": 7}
INFILL = {"text": "The [4] fox [3] dog", "n": 2, "seed": 5}


def events(response: httpx.Response) -> list[tuple[str, dict]]:
    """Names and contents of Server-Sent Events; the stream must end with [DONE]."""
    blocks = [block for block in response.text.split("\n\n") if block]
    assert blocks[-1] == "data: [DONE]"
    found = []
    for block in blocks[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


def texts(answer: dict) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def test_a_completion_is_what_the_sampler_draws_with_that_seed(client, masked):
    answer = client.post("/v1/completions", json=COMPLETION).json()
    drawn = sample(masked, n=3, length=9 + 12, prompt="The lazy ", seed=7, until="<|endoftext|>")
    assert texts(answer) == [one.text.removeprefix("The lazy ") for one in drawn]
    assert answer["usage"] == {"prompt_tokens": 9, "completion_tokens": 36, "total_tokens": 45}
    assert answer["law"] == "exact"


def test_a_stream_joins_to_the_answer_without_a_stream(client):
    whole = client.post("/v1/completions", json=COMPLETION).json()
    chunks = events(client.post("/v1/completions", json={**COMPLETION, "stream": True}))
    joined, reasons = [""] * 3, [None] * 3
    for _, chunk in chunks:
        (choice,) = chunk["choices"]
        assert reasons[choice["index"]] is None, "nothing may come after the end"
        joined[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert joined == texts(whole)
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]


def test_steps_put_together_give_the_final_text(client):
    whole = client.post("/v1/infill", json=INFILL).json()
    body = {**INFILL, "stream": True, "events": "steps", "draft": True}
    (first, begin), *steps, (last, end) = events(client.post("/v1/infill", json=body))
    assert (first, last) == ("begin", "end")
    rows = [[token["id"] for token in row] for row in begin["candidates"]]
    calls = set()
    for name, step in steps:
        assert name == "step"
        calls.add(step["call"])
        for token in step["committed"]:
            assert rows[token["candidate"]][token["position"]] is None, "a token is set once"
            assert 0 < token["confidence"] <= 1
            rows[token["candidate"]][token["position"]] = token["token"]
        blanks = sorted((i, j) for i, row in enumerate(rows) for j, id in enumerate(row) if id is None)
        assert sorted((token["candidate"], token["position"]) for token in step["draft"]) == blanks
    assert calls == set(range(1, whole["calls"] + 1))
    assert end["choices"] == whole["choices"]
    assert rows == [[token["id"] for token in choice["tokens"]] for choice in whole["choices"]]
    assert texts(whole) == ["".join(token["text"] for token in choice["tokens"]) for choice in whole["choices"]]


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Plaid(embed=4), DiffusionLM(steps=6, embed=4), SSDLM(steps=6, block=5)])
def test_a_stream_of_continuous_diffusion_shows_the_rounded_text_of_every_step(serve, tmp_path, objective):
    model = model_of(tmp_path / "m", objective)
    body = {"prompt": "ab", "max_tokens": 10, "seed": 3, "steps": 6}
    *moments, one = generate(model, Recipe(steps=6, seed=3), prompt="ab", length=12)
    texts = [model.tokenizer.decode(moment.step.canvas.tokens[0, 2:].tolist()) for moment in moments]
    with httpx.Client(base_url=serve(model), timeout=120) as own:
        asked = {**body, "stream": True, "events": "steps"}
        (_, begin), *steps, (_, end) = events(own.post("/v1/completions", json=asked))
        streamed = events(own.post("/v1/completions", json={**body, "stream": True}))
    shown = [token["id"] for token in begin["candidates"][0]]
    for (_, step), text in zip(steps, texts, strict=True):
        for token in step["committed"]:
            shown[token["position"]] = token["token"]
        assert model.tokenizer.decode([model.mask if id is None else id for id in shown][-10:]) == text
    assert len({*texts}) > 1, "it changes"
    eos = model.tokenizer.eos  # where an answer over HTTP ends
    assert (
        "ab" + end["choices"][0]["text"]
        == model.tokenizer.decode(one.tokens[: one.tokens.index(eos) if eos in one.tokens else None])
        == "ab" + "".join(choice["text"] for _, said in streamed for choice in said.get("choices", ()))
    ), "a stream of text sends what is final alone"


def test_a_stream_of_text_of_an_infilling_joins_to_its_text(client):
    whole = client.post("/v1/infill", json=INFILL).json()
    joined = ["", ""]
    for _, chunk in events(client.post("/v1/infill", json={**INFILL, "stream": True})):
        for choice in chunk["choices"]:
            joined[choice["index"]] += choice["text"]
    assert joined == texts(whole)


def test_what_is_given_stays_in_every_candidate(client):
    for text in texts(client.post("/v1/infill", json=INFILL).json()):
        assert text.startswith("The ")
        assert text[8:13] == " fox "
        assert text.endswith(" dog")


def test_tokens_with_nulls_are_an_infilling_too(client):
    first = client.post("/v1/infill", json=INFILL).json()["choices"][0]["tokens"]
    kept = [token["id"] if i % 2 else None for i, token in enumerate(first)]
    again = client.post("/v1/infill", json={"tokens": kept, "seed": 1}).json()["choices"][0]["tokens"]
    assert [token["id"] for token in again][1::2] == kept[1::2]
    assert all(token["given"] == (i % 2 == 1) for i, token in enumerate(again))


def test_each_prompt_of_a_list_gets_what_it_gets_alone(client, masked):
    prompts = ["The ", "Once upon a "]
    together = client.post("/v1/completions", json={**COMPLETION, "prompt": prompts, "n": 2}).json()
    apart = [client.post("/v1/completions", json={**COMPLETION, "prompt": p, "n": 2}).json() for p in prompts]
    assert texts(together) == texts(apart[0]) + texts(apart[1])
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2, 3]
    ids = [masked.tokenizer.encode(prompt) for prompt in prompts]
    assert texts(client.post("/v1/completions", json={**COMPLETION, "prompt": ids, "n": 2}).json()) == texts(together)


def test_a_suffix_is_seen_and_not_repeated(client):
    body = {**COMPLETION, "suffix": " dog. fox", "n": 1}
    with_suffix, without = (
        client.post("/v1/completions", json=body).json(),
        client.post("/v1/completions", json={**COMPLETION, "n": 1}).json(),
    )
    assert with_suffix["usage"]["prompt_tokens"] == 18
    assert with_suffix["usage"]["completion_tokens"] == 12
    assert texts(with_suffix) != texts(without)


def test_text_ends_before_a_stop_text(client):
    (whole,) = texts(client.post("/v1/completions", json={**COMPLETION, "n": 1}).json())
    stop = whole[5:7]
    answer = client.post("/v1/completions", json={**COMPLETION, "n": 1, "stop": [stop, "zzzz"]}).json()
    assert texts(answer) == [whole[: whole.index(stop)]]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_temperature_nought_needs_no_seed(client):
    body = {"prompt": "The ", "max_tokens": 6, "temperature": 0, "sampler": "confidence"}
    first, second = (client.post("/v1/completions", json=body).json() for _ in range(2))
    assert texts(first) == texts(second)
    assert first["seed"] != second["seed"]


def test_the_seed_an_answer_names_gives_it_again(client):
    first = client.post("/v1/completions", json={**COMPLETION, "seed": None}).json()
    assert texts(client.post("/v1/completions", json={**COMPLETION, "seed": first["seed"]}).json()) == texts(first)


WRONG = [
    ("/v1/completions", {"promt": "a"}, "Did you mean 'prompt'?"),
    ("/v1/completions", {"presence_penalty": 1}, "presence_penalty is not supported: leave it out. no_repeat blocks"),
    ("/v1/completions", {"logprobs": 21}, "logprobs: "),
    (
        "/v1/completions",
        {"logprobs": 1, "stream": True, "events": "steps"},
        "a step has the confidence",
    ),
    ("/v1/completions", {"n": "3"}, "n: "),
    ("/v1/completions", {"n": True}, "n: "),
    ("/v1/completions", {"n": 33}, "one request may have 32"),
    ("/v1/completions", {"temperature": -1}, "temperature: "),
    ("/v1/completions", {"temperature": 5e-324}, "temperature must be 0"),
    ("/v1/completions", {"max_tokens": 49}, "takes 48 at most"),
    ("/v1/completions", {"prompt": []}, "must not be empty"),
    ("/v1/completions", {"prompt": [10_000]}, "ids must be tokens"),
    ("/v1/completions", {"prompt": "漢"}, "no token for"),
    ("/v1/completions", {"prompt": "\ud800"}, "no token for"),
    ("/v1/completions", {"stop": ""}, "none of them empty"),
    ("/v1/completions", {"steps": 10**5, "sampler": "ancestral"}, "2000 at most"),
    ("/v1/completions", {"steps": 10**9, "sampler": "ancestral"}, "1,000,000 at most"),
    ("/v1/completions", {"steps": 5}, "has no number of steps"),
    ("/v1/completions", {"sampler": "ancestrl"}, "Did you mean 'ancestral'?"),
    ("/v1/completions", {"sampler": "d3pm"}, "it needs mass on the mask, and the objective mdlm gives"),
    ("/v1/completions", {"draft": True}, "set events to 'steps'"),
    ("/v1/completions", {"stream_options": {}}, "stream_options need stream true"),
    ("/v1/completions", {"seed": 2**63}, "seed: "),
    ("/v1/infill", {}, "either a text with blanks or tokens"),
    ("/v1/infill", {"text": "no blank"}, "has no blank"),
    ("/v1/infill", {"text": "[999999999]"}, "takes 48 at most"),
    ("/v1/infill", {"tokens": [-1, None]}, "must lie in"),
    ("/v1/score", {"texts": []}, "texts: "),
    ("/v1/score", {"texts": [""]}, "must not be empty"),
    ("/v1/score", {"texts": ["a"], "passes": 1000}, "64 at most"),
    ("/v1/score", {"texts": ["a" * 49]}, "takes 48 at most"),
]


@pytest.mark.parametrize("path, body, said", WRONG)
def test_a_wrong_request_is_told_what_is_wrong_in_openais_shape(client, path, body, said):
    response = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert said in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "status, request_",
    [
        (404, ("GET", "/nowhere", {})),
        (404, ("GET", "/page/../app.py", {})),
        (404, ("GET", "/page/%2e%2e%2fapp.py", {})),
        (404, ("POST", "/v1/completions", {"json": {"model": "other"}})),
        (404, ("GET", "/v1/models/other", {})),
        (405, ("GET", "/v1/completions", {})),
        (400, ("POST", "/v1/completions", {"content": b"{", "headers": {"content-type": "application/json"}})),
        (400, ("POST", "/v1/score", {"content": b"\xff", "headers": {"content-type": "application/json"}})),
        (400, ("POST", "/v1/score", {"content": b"[" * 90_000, "headers": {"content-type": "application/json"}})),
        (415, ("POST", "/v1/completions", {"content": b"{}", "headers": {"content-type": "text/plain"}})),
        (413, ("POST", "/v1/completions", {"json": {"prompt": "a" * 1_000_000}})),
    ],
)
def test_other_mistakes_have_their_status_and_the_same_shape(client, status, request_):
    method, path, options = request_
    response = client.request(method, path, **options)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_that_does_not_say_its_size_is_bounded_too(client):
    parts = (b"a" * 10_000 for _ in range(1000))
    response = client.post("/v1/completions", content=parts, headers={"content-type": "application/json"})
    assert response.status_code == 413


def test_models_health_metrics_and_pages_answer(client):
    card = client.get("/v1/models").json()["data"][0]
    assert card["id"] == "tiny"
    assert card["max_tokens"] == 48
    assert card["samplers"][0]["name"] == "first-hitting"
    assert "d3pm" not in {sampler["name"] for sampler in card["samplers"]}
    assert client.get("/v1/models/tiny").json() == card
    assert client.get("/health").json() == {"status": "ok"}
    assert 'unmask_requests_total{route="/health",status="200"}' in client.get("/metrics").text
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]


def test_a_full_queue_is_not_ready_and_a_network_that_hangs_is_not_alive(serve, slowed):
    model, rows = slowed(0.0)
    turn, inner = threading.Event(), model.network.run.inner

    def held(p):
        rows.append(1)
        turn.wait(60)
        return inner(p)

    model.network.run = held
    with ThreadPoolExecutor() as threads:
        client = httpx.Client(base_url=serve(model, limits=Limits(queue=1, seconds=0.5)), timeout=60)
        assert client.get("/ready").json() == {"status": "ok"}
        asked = [threads.submit(client.post, "/v1/completions", json=COMPLETION) for _ in range(2)]
        for _ in range(10_000):  # for the seconds that a request may take
            assert client.get("/ready").status_code in (200, 429, 503)
            if client.get("/health").status_code != 200:
                break
        assert [client.get(path).json()["error"]["code"] for path in ("/health", "/ready")] == ["stuck", "stuck"]
        turn.set()
        assert {one.result().status_code for one in asked} <= {429, 504}
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        client.close()


def test_every_sampler_the_server_names_works(client):
    for sampler in client.get("/v1/models").json()["data"][0]["samplers"]:
        steps = 4 if sampler["takes_steps"] else None
        body = {"prompt": "The ", "max_tokens": 5, "sampler": sampler["name"], "steps": steps, "seed": 1}
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 200, (sampler, response.text)
        assert response.json()["usage"]["completion_tokens"] == 5


def test_without_the_key_nothing_but_the_page_is_open(serve, masked):
    with httpx.Client(base_url=serve(masked, key="correct horse"), timeout=120) as client:
        assert client.get("/health").status_code == client.get("/").status_code == 200
        wrong = [
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "correct horse"},
            {"authorization": "Bearer"},
        ]
        for path in ("/v1/models", "/metrics"):
            assert {client.get(path, headers=headers).status_code for headers in wrong} == {401}
            assert client.get(path, headers={"authorization": "Bearer correct horse"}).status_code == 200
        answer = client.post("/v1/completions", json={}, headers=wrong[1])
        assert answer.json()["error"]["code"] == "invalid_api_key"
        strange = {b"authorization": b"Bearer \xff\xfe"}
        assert client.get("/v1/models", headers=strange).status_code == 401


def test_other_host_names_are_refused_where_only_some_are_known(serve, masked):
    with httpx.Client(base_url=serve(masked, hosts=("127.0.0.1", "[::1]")), timeout=120) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/health", headers={"host": "[::1]:80"}).status_code == 200
        assert client.get("/health", headers={"host": "evil.example"}).status_code == 421


def test_other_sites_are_let_in_only_when_named(serve, client, masked):
    asked = {"origin": "https://good.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in client.options("/v1/completions", headers=asked).headers
    with httpx.Client(
        base_url=serve(masked, origins=("https://good.example",), key="correct horse"), timeout=120
    ) as open_one:
        allowed = open_one.options("/v1/completions", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://good.example"
        other = open_one.options("/v1/completions", headers={**asked, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_a_full_queue_answers_429_and_nothing_is_lost(serve, slowed, masked):
    address = serve(slowed(0.01)[0], limits=Limits(queue=1, positions=48))
    found = []

    def ask(seed):
        body = {"prompt": "The ", "max_tokens": 20, "seed": seed}
        found.append((seed, httpx.post(f"{address}/v1/completions", json=body, timeout=120)))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [response for _, response in found if response.status_code == 429]
    served = {seed: texts(response.json()) for seed, response in found if response.status_code == 200}
    assert len(refused) + len(served) == 8
    assert refused
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    for seed, got in served.items():
        (drawn,) = sample(masked, length=24, prompt="The ", seed=seed, until="<|endoftext|>")
        assert got == [drawn.text.removeprefix("The ")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_is_in_no_further_call(serve, slowed, stream):
    model, calls = slowed(0.1)
    host, port = serve(model).removeprefix("http://").split(":")
    body = {"prompt": "The ", "max_tokens": 40, "stream": stream, **({"events": "steps"} if stream else {})}
    text = json.dumps(body)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=120) as plug:
        plug.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
        while len(calls) < 2:
            time.sleep(0.01)
    made = -1  # the client has gone away
    while made != len(calls):
        made = len(calls)
        time.sleep(0.5)
    assert 2 <= made < 36


def test_a_request_that_takes_too_long_is_told_so_also_in_a_stream(serve, slowed):
    address = serve(slowed(0.03)[0], limits=Limits(seconds=0.25))
    body = {"prompt": "The ", "max_tokens": 40}
    assert httpx.post(f"{address}/v1/completions", json=body, timeout=120).status_code == 504
    stream = httpx.post(f"{address}/v1/completions", json={**body, "stream": True}, timeout=120)
    last = stream.text.strip().split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.split("data: ")[1])["error"]["code"] == "timeout"


def logged(caplog, count: int) -> list[str]:
    """The server's lines without their times; the last is written just after the answer is sent."""
    while len(lines := [r.getMessage() for r in caplog.records if r.name == "unmask.serving"]) < count:
        time.sleep(0.01)
    return [re.sub(r" [\d.]+s$", "", line).partition(" ")[2] for line in lines]


def test_the_id_of_an_answer_is_in_the_log_and_in_a_header(client, caplog):
    caplog.set_level(logging.INFO, logger="unmask")
    answer = client.post("/v1/completions", json={"prompt": "The ", "max_tokens": 4})
    refused = client.post("/v1/completions", json={"promt": "The "})
    numbers = [one.headers["x-request-id"] for one in (answer, refused)]
    assert answer.json()["id"] == f"cmpl-{numbers[0]}"
    assert numbers[0] != numbers[1]
    end = time.monotonic() + 120
    while time.monotonic() < end and not all(number in caplog.text for number in numbers):
        time.sleep(0.02)  # an answer is logged just after it is sent
    lines = [record.getMessage() for record in caplog.records if record.name == "unmask.serving"]
    for number, status in zip(numbers, (200, 400), strict=True):
        assert any(re.fullmatch(rf"{number} POST /v1/completions {status} [\d.]+s", line) for line in lines)


def test_an_address_with_one_more_slash_is_unknown_and_health_answers_to_head(client):
    assert client.post("/v1/completions/", json={"prompt": "The "}).status_code == 404
    assert client.get("/metrics/").status_code == 404
    head = client.head("/health")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("host", ["127.0.0.1:80@evil.example", "127.0.0.1:x", "127.0.0.1:80:80", "evil@127.0.0.1"])
def test_a_host_with_more_than_a_name_and_a_port_is_refused(serve, masked, host):
    with httpx.Client(base_url=serve(masked), timeout=120) as client:
        assert client.get("/health", headers={"host": host}).status_code == 421
        assert client.get("/health", headers={"host": "127.0.0.1:80"}).status_code == 200


def test_a_body_with_two_ends_is_refused_and_its_connection_closed(address):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as plug:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        plug.sendall(head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
        answer = b"".join(iter(lambda: plug.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"not both" in answer


@pytest.mark.parametrize("tracebacks", [False, True])
def test_a_failure_inside_tells_nothing_to_the_client_and_no_prompt_to_the_log(
    serve, slowed, monkeypatch, caplog, tracebacks
):
    model, _ = slowed(0.0)
    monkeypatch.setattr(model.network, "head", lambda hidden: 1 / 0)
    address = serve(model, tracebacks=tracebacks)
    caplog.set_level(logging.DEBUG)
    response = httpx.post(f"{address}/v1/completions", json={"prompt": "quick brown"}, timeout=120)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "ZeroDivision" not in response.text
    failure, line = logged(caplog, 2)
    assert re.match(r"failure: ZeroDivisionError in test_app\.py:\d+ <lambda> < \w+\.py:\d+ \w+ < ", failure)
    assert line == "POST /v1/completions 500"
    assert "quick brown" not in caplog.text
    assert ("Traceback" in caplog.text) == tracebacks


def test_logs_hold_no_prompt_no_address_and_no_query(client, caplog):
    caplog.set_level(logging.INFO, logger="unmask")
    client.post("/v1/completions?secret=1", json={"prompt": "lazy dog"})
    client.get("/private/lazy")
    assert logged(caplog, 2) == ["POST /v1/completions 200", "GET other 404"]


def test_an_autoregressive_model_continues_as_its_own_sampler_does(serve, causal):
    address = serve(causal)
    body = {"prompt": ["The ", "Once upon "], "max_tokens": 9, "seed": 4, "n": 2}
    got = texts(httpx.post(f"{address}/v1/completions", json=body, timeout=120).json())
    for i, prompt in enumerate(body["prompt"]):
        drawn = sample(causal, n=2, length=1 + len(prompt) + 9, prompt=prompt, seed=4)
        end = [one.tokens[1 + len(prompt) :] for one in drawn]
        cut = [ids[: ids.index(causal.tokenizer.eos)] if causal.tokenizer.eos in ids else ids for ids in end]
        assert got[2 * i : 2 * i + 2] == [causal.tokenizer.decode(ids) for ids in cut]
    for path, wrong in (("/v1/infill", {"text": "a [3] b"}), ("/v1/completions", {"suffix": "b"})):
        refused = httpx.post(f"{address}{path}", json=wrong, timeout=120)
        assert refused.status_code == 400
        assert "of the objective ar" in refused.json()["error"]["message"]


@pytest.mark.slow
def test_a_blank_of_no_given_length_takes_the_lengths_around_which_the_text_fits_best(client, masked):
    text, seed = "The ___ fox", 5
    task = Infill(masked, parse(text))
    *_, posterior = task.weigh(task.choices(16), passes=8, seed=seed)
    best = [length for (length,) in posterior.lengths(10)]
    choices = client.post("/v1/infill", json={"text": text, "n": 10, "seed": seed}).json()["choices"]
    assert [len(choice["text"]) - len("The  fox") for choice in choices] == best
    (alone,) = client.post("/v1/infill", json={"text": f"The [{best[0]}] fox", "seed": seed}).json()["choices"]
    assert choices[0]["tokens"] == alone["tokens"]


def test_candidates_have_the_scores_of_python(client, masked):
    body = {"text": "The [2-3] fox", "n": 4, "seed": 5}
    told = {one["text"]: one["score"] for one in client.post("/v1/infill", json=body).json()["choices"]}
    python = {one.text: one.score for one in infill(masked, body["text"], n=4, seed=5, passes=8)}
    assert told == pytest.approx(python, abs=1e-4)
    assert len(told) == 4
    (alone,) = client.post("/v1/infill", json={"text": "The [2] fox", "seed": 5}).json()["choices"]
    assert alone["score"] == 0


def test_a_blank_is_never_longer_than_what_is_left(client):
    body = {"text": "a" * 45 + "___", "n": 8}
    lengths = [len(one["tokens"]) for one in client.post("/v1/infill", json=body).json()["choices"]]
    assert set(lengths) == {46, 47, 48}


@pytest.mark.slow
def test_a_blank_behind_a_space_begins_with_it_whatever_is_drawn_beside_it(serve, tmp_path):
    words = bpe([TEXT * 9], 320)
    model = load(saved(tmp_path / "words", tokenizer=words))
    body = {"text": "The [2] fox ___ over", "n": 5, "seed": 5}
    with httpx.Client(base_url=serve(model), timeout=120) as client, ThreadPoolExecutor(4) as many:
        plain = client.post("/v1/infill", json=body).json()
        asked = [body, {**body, "text": "The[2] fox"}, {**body, "text": "The fox [4]", "seed": 6}, body]
        answers = list(many.map(lambda one: client.post("/v1/infill", json=one).json(), asked))
    assert texts(answers[0]) == texts(answers[3]) == texts(plain)
    first = len(words.encode("The"))
    for choice in plain["choices"]:
        assert re.fullmatch(r"(?s)The .+ fox .+ over", choice["text"])
        assert choice["tokens"][first]["id"] in words.spacers
    (python,) = infill(model, "The [2] fox", seed=5)
    with httpx.Client(base_url=serve(model), timeout=120) as client:
        assert texts(client.post("/v1/infill", json={"text": "The [2] fox", "seed": 5}).json()) == [python.text]
