"""Streams of events: the bytes on the wire, pings while nothing is sent, and a server that shuts down."""

import json

import httpx
from sse_starlette.sse import AppStatus

from unmask.serving.http import drawing
from unmask.serving.http.replies import DONE, event

BODY = {"prompt": "The ", "max_tokens": 6, "seed": 7, "stream": True}


def test_an_event_is_its_name_if_it_has_one_and_one_line_of_data():
    assert event({"a": "é\n\ud800"}).encode() == b'data: {"a":"\\u00e9\\n\\ud800"}\n\n'
    assert event([1], "step").encode() == b"event: step\ndata: [1]\n\n"
    assert DONE.encode() == b"data: [DONE]\n\n"


def test_a_stream_without_news_sends_comments_and_the_same_events(serve, slowed, client, monkeypatch):
    plain = client.post("/v1/completions", json=BODY)
    assert ": ping" not in plain.text
    assert plain.headers["content-type"].startswith("text/event-stream")
    assert plain.headers["cache-control"] == "no-store"
    assert plain.headers["x-accel-buffering"] == "no"
    monkeypatch.setattr(drawing, "PING", 0.05)
    blocks = httpx.post(f"{serve(slowed(0.2)[0])}/v1/completions", json=BODY, timeout=120).text.split("\n\n")
    comments = [block for block in blocks if block.startswith(":")]
    assert len(comments) > 5
    assert all("\n" not in comment for comment in comments)
    assert texts(block for block in blocks if not block.startswith(":")) == texts(plain.text.split("\n\n"))


def texts(blocks) -> str:
    data = [block.removeprefix("data: ") for block in blocks if block]
    assert data.pop() == "[DONE]"
    return "".join(json.loads(one)["choices"][0]["text"] for one in data)


def test_a_stream_is_not_cut_off_when_the_server_is_told_to_stop(serve, slowed, monkeypatch):
    address = serve(slowed(0.1)[0])
    with httpx.stream(
        "POST", f"{address}/v1/completions", json={**BODY, "max_tokens": 16, "events": "steps"}, timeout=120
    ) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: begin"
        monkeypatch.setattr(AppStatus, "should_exit", True)  # as on SIGTERM; looked at twice per second
        assert "data: [DONE]" in list(lines)
