"""Clients that hold a connection and do not use it lose it; those that use it keep it."""

import json
import logging
import re
import socket
import time

import httpx
import pytest

from unmask.serving.limits import Limits

pytestmark = pytest.mark.slow


HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE = 60  # seconds until a test gives up


def connected(address: str, sent: bytes = b"", *, window: int | None = None) -> socket.socket:
    """A connection that has sent so much; `window`: bytes that its client's kernel takes without a reader."""
    host, port = re.fullmatch(r"http://(.+):(\d+)", address).groups()
    plug = socket.socket()
    if window is not None:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    plug.settimeout(PATIENCE)
    plug.connect((host, int(port)))
    plug.sendall(sent)
    return plug


def request(**body) -> bytes:
    content = json.dumps(body).encode()
    return HEAD.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content


def rest(plug: socket.socket) -> bytes:
    """What the server still sends before it ends the connection; fails if it does not."""
    found = b""
    with plug:
        try:
            while part := plug.recv(2**16):
                found += part
        except ConnectionResetError:
            pass
    return found


def ask_health(plug: socket.socket) -> None:
    plug.sendall(HEALTH)
    found = b""
    while b'"ok"}' not in found and (part := plug.recv(2**16)):
        found += part
    assert b"200 OK" in found


def until(true) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD.encode()])
def test_a_connection_whose_headers_do_not_arrive_is_closed(serve, masked, sent):
    address = serve(masked, limits=Limits(arrival=0.2))
    assert rest(connected(address, sent)) == b""


def test_half_a_header_after_a_request_is_closed_too(serve, masked):
    plug = connected(serve(masked, limits=Limits(arrival=1)))
    ask_health(plug)
    plug.sendall(b"GET /health")
    assert rest(plug) == b""


def test_half_a_body_gets_408(serve, masked):
    plug = connected(serve(masked, limits=Limits(arrival=0.2)), request(prompt="The ")[:-3])
    assert b" 408 " in plug.recv(2**16)
    plug.close()


def test_a_request_that_takes_longer_than_its_headers_may_and_a_client_that_pauses_are_served(serve, slowed):
    address = serve(slowed(0.05)[0], limits=Limits(arrival=0.5))
    with httpx.Client(base_url=address, timeout=PATIENCE) as client:
        for _ in range(2):
            assert client.post("/v1/completions", json={"prompt": "The ", "max_tokens": 12}).status_code == 200
            time.sleep(0.6)


def test_at_the_limit_the_connection_that_has_waited_longest_makes_room(serve, masked):
    address = serve(masked, limits=Limits(connections=3))
    used, silent = connected(address), connected(address)
    for _ in range(3):  # at the first answer the server may not have seen the other one yet
        ask_health(used)
    later = [connected(address), connected(address)]
    assert rest(silent) == b""
    ask_health(used)
    later += [connected(address) for _ in range(12)]
    assert httpx.get(f"{address}/health", timeout=PATIENCE).status_code == 200
    for plug in [*later[:10], used]:
        assert rest(plug) == b""
    for plug in later[10:]:
        plug.close()


def test_when_all_connections_are_being_answered_another_one_gets_503(serve, slowed):
    address = serve(slowed(0.05)[0], limits=Limits(connections=2))
    body = {"prompt": "The ", "max_tokens": 40, "stream": True, "events": "steps"}
    busy = [connected(address, request(**body)) for _ in range(2)]
    for plug in busy:
        assert b"200 OK" in plug.recv(200)
    refused = rest(connected(address))
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert json.loads(refused.split(b"\r\n\r\n")[1])["error"]["code"] == "connections_full"
    for plug in busy:
        plug.close()


def test_a_client_that_reads_nothing_is_cut_off(serve, masked, caplog):
    caplog.set_level(logging.INFO, logger="unmask")
    address = serve(masked, limits=Limits(delivery=0.3))
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    size = len(httpx.get(f"{address}/openapi.json", timeout=120).content)
    plug = connected(address, asked * 200, window=4096)
    until(lambda: "a client that does not read was cut off" in caplog.text)
    assert len(rest(plug)) < 200 * size
