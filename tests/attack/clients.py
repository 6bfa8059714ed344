"""Hostile clients: one conversation with a real `unmask serve`, after which the server must be as well as before.

Not called requests.py: the package of that name, which others import, must stay reachable.
"""

import atexit
import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
import models

about = "hostile HTTP conversations with one server: silent, half, slow, leaving, garbled"
usual = 2000

PATIENCE = 120  # seconds until a client believes that the server hangs: far above what a busy machine needs
LIMITS = {"arrival": 1, "delivery": 2, "connections": 40}
MEMORY = 1000  # megabytes
CUT = "a client that does not read was cut off"
KNOWN = {"prompt": "The ", "max_tokens": 12, "seed": 7}


@dataclass
class Server:
    """A running `unmask serve` and what it said before anybody attacked it."""

    process: subprocess.Popen
    address: str
    log: Path
    truth: str = ""

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def connected(self, *, window: int | None = None) -> socket.socket:
        plug = socket.socket()
        if window is not None:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        plug.settimeout(PATIENCE)
        plug.connect(("127.0.0.1", self.port))
        return plug

    def text(self) -> str:
        response = httpx.post(f"{self.address}/v1/completions", json=KNOWN, timeout=PATIENCE)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    def number(self, name: str) -> float:
        metrics = httpx.get(f"{self.address}/metrics", timeout=PATIENCE).text
        return float(re.search(rf"^{name} (\S+)", metrics, re.M)[1])

    def megabytes(self) -> float:
        """The most memory that the process has had."""
        status = Path(f"/proc/{self.process.pid}/status")
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024 if status.exists() else 0.0


def started(model: str, *options: str, log: Path) -> Server:
    """A server that answers, with small limits of time."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "unmask", "serve", model, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    found = re.search(r"http://\S+:\d+", process.stdout.readline())
    assert found, log.read_text()
    server = Server(process, found[0], log)
    while True:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"{server.address}/health", timeout=PATIENCE)
            return server
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)


def ended(server: Server) -> None:
    server.process.kill()
    server.process.wait()
    server.process.stdout.close()


shared: list[Server] = []


def one_server() -> Server:
    """The server of all tries, started when first needed."""
    if not shared:
        folder = tempfile.TemporaryDirectory(prefix="attack-clients-")
        atexit.register(folder.cleanup)
        model = models.saved(Path(folder.name) / "tiny")
        options = [part for name, value in LIMITS.items() for part in (f"--limits.{name}", str(value))]
        shared.append(started(str(model), *options, log=Path(folder.name) / "log"))
        atexit.register(lambda: ended(shared[0]))
        shared[0].truth = shared[0].text()
    return shared[0]


def raw(path: str, body: dict, *, headers: str = "") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def rest(plug: socket.socket, *, quiet: float | None = None) -> bytes:
    """What comes until the server ends the connection, or has been quiet for so many seconds."""
    found = b""
    if quiet is not None:
        plug.settimeout(quiet)
    with contextlib.suppress(ConnectionError, *([TimeoutError] if quiet is not None else [])):
        while part := plug.recv(2**16):
            found += part
    return found


def reset(plug: socket.socket) -> None:
    """Leave without a word: the server's next packet is refused."""
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    plug.close()


def some_body(draw: random.Random) -> tuple[str, dict]:
    """A request that is right, of any kind."""
    path = draw.choice(["/v1/completions", "/v1/completions", "/v1/infill", "/v1/score"])
    if path == "/v1/score":
        return path, {"texts": ["The quick fox"] * draw.randint(1, 4), "passes": draw.choice([2, 8])}
    body: dict = {"n": draw.choice([1, 2, 16]), "seed": draw.randrange(100)}
    body |= (
        {"prompt": "The ", "max_tokens": draw.randint(1, 40)} if path == "/v1/completions" else {"text": "a [5] b"}
    )
    body |= draw.choice([{}, {"stream": True}, {"stream": True, "events": "steps", "draft": True}])
    return path, body | draw.choice([{}, {"temperature": 0.5}, {"pattern": "[a-z ]{1,9}"}, {"guidance": 1.5}])


def silent(server: Server, draw: random.Random) -> str | None:
    """Connections that send nothing, up to more than there may be."""
    plugs = [server.connected() for _ in range(draw.choice([1, 3, 60]))]
    told = None if server.text() == server.truth else "another answer beside silent connections"
    for plug in plugs:
        if rest(plug):
            told = "a silent connection was answered"
        plug.close()
    return told


def half(server: Server, draw: random.Random) -> str | None:
    """A request that stops anywhere."""
    whole = raw(*some_body(draw))
    with server.connected() as plug:
        plug.sendall(whole[: draw.randrange(1, len(whole))])
        said = rest(plug)
    return None if not said or b" 408 " in said.split(b"\r\n")[0] else f"half a request got {said[:60]!r}"


def dripped(server: Server, draw: random.Random) -> str | None:
    """A request in packets of a few bytes."""
    whole = raw("/v1/completions", KNOWN, headers="Connection: close\r\n")
    size = draw.choice([1, 7, 40])
    with server.connected() as plug:
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(whole), size):
                plug.sendall(whole[at : at + size])
        said = rest(plug)
    right = json.dumps(server.truth).encode() in said
    return None if right or not said or b" 408 " in said else f"a dripped request got {said[:60]!r}"


def unread(server: Server, draw: random.Random) -> str | None:
    """A long stream that nobody reads, or a row of requests whose answers nobody reads."""
    long = {"prompt": "T", "max_tokens": 40, "n": 32, "sampler": "remask-cap:eta=0.9", "steps": 2000, "seed": 1}
    stream = raw("/v1/completions", {**long, "stream": True, "events": "steps", "draft": True})
    pages = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300
    before = server.log.read_text().count(CUT)
    with server.connected(window=4096) as plug, contextlib.suppress(ConnectionError):
        plug.sendall(draw.choice([stream, pages]))
        end = time.monotonic() + PATIENCE
        while server.log.read_text().count(CUT) == before:
            if time.monotonic() > end:
                return "a client that does not read was not cut off"
            time.sleep(0.05)
    return None


def leaving(server: Server, draw: random.Random) -> str | None:
    """Clients that leave at any moment, politely or not."""
    for _ in range(draw.choice([1, 10])):
        plug = server.connected()
        whole = raw(*some_body(draw))
        plug.sendall(whole if draw.random() < 0.8 else whole[: draw.randrange(len(whole))])
        if draw.random() < 0.5:
            plug.settimeout(draw.uniform(0.001, 0.3))
            with contextlib.suppress(TimeoutError):
                plug.recv(draw.choice([1, 200, 2**16]))
        draw.choice([reset, socket.socket.close])(plug)
    return None


def garbled(server: Server, draw: random.Random) -> str | None:
    """A request with changed, missing or doubled bytes."""
    whole = bytearray(raw(*some_body(draw)))
    for _ in range(draw.choice([1, 3, 20])):
        at = draw.randrange(len(whole))
        kind = draw.randrange(3)
        if kind == 0:
            whole[at] = draw.randrange(256)
        elif kind == 1:
            del whole[at : at + draw.randint(1, 5)]
        else:
            whole[at:at] = whole[at : at + draw.randint(1, 50)]
        whole = whole or bytearray(b"\n")
    with server.connected() as plug:
        with contextlib.suppress(ConnectionError):
            plug.sendall(bytes(whole))
        said = rest(plug, quiet=0.5)
    statuses = {int(one) for one in re.findall(rb"^HTTP/1\.1 (\d+)", said, re.M)}
    return None if all(status < 500 for status in statuses) else f"a garbled request got {statuses}"


def pipelined(server: Server, draw: random.Random) -> str | None:
    """Many requests in one packet; the answers come in their order."""
    count = draw.randint(2, 12)
    last = raw("/v1/completions", KNOWN, headers="Connection: close\r\n")
    with server.connected() as plug:
        plug.sendall(raw("/v1/completions", KNOWN) * (count - 1) + last)
        said = rest(plug)
    found = said.count(json.dumps(server.truth).encode())
    return None if found == count else f"{found} of {count} requests in one packet were answered"


def large(server: Server, draw: random.Random) -> str | None:
    """Headers or bodies above what is allowed."""
    with server.connected() as plug:
        with contextlib.suppress(ConnectionError):
            if draw.random() < 0.5:
                plug.sendall(b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * draw.choice([70_000, 1_000_000]) + b"\r\n\r\n")
            else:
                plug.sendall(raw("/v1/completions", {"prompt": "a" * draw.choice([999_000, 3_000_000])}))
        said = rest(plug, quiet=1)
    first = said.split(b"\r\n")[0]
    return None if not said or re.match(rb"HTTP/1.1 4\d\d ", first) else f"a request that is too large got {first!r}"


KINDS: list[Callable[[Server, random.Random], str | None]] = [
    *(silent, half, half, dripped, leaving, leaving, leaving, garbled, garbled, garbled, garbled),
    *(pipelined, large, unread),
]


def unwell(server: Server) -> str | None:
    """What is wrong with the server now."""
    if server.process.poll() is not None:
        return f"the server ended with code {server.process.returncode}"
    if server.text() != server.truth:
        return "the server gives another answer than before"
    end = time.monotonic() + PATIENCE
    while server.number("unmask_live_requests") or server.number("unmask_waiting_requests"):
        if time.monotonic() > end:
            return "requests that nobody waits for are still there"
        time.sleep(0.02)
    if server.megabytes() > MEMORY:
        return f"the server has {server.megabytes():.0f} MB"
    return "a traceback in the log" if "Traceback" in server.log.read_text() else None


def attempt(seed: int, folder: Path) -> str | None:
    draw, server = random.Random(seed), one_server()
    kind = draw.choice(KINDS)
    try:
        told = kind(server, draw) or unwell(server)
    except (TimeoutError, httpx.TransportError, AssertionError) as error:
        told = f"{type(error).__name__}: {error}"
    return None if told is None else f"{kind.__name__}: {told}"


def grace_exceeded(folder: Path) -> str | None:
    """Sixteen requests that outlast the grace, and a signal: each is told, and the server ends."""
    server = started(str(models.saved(folder / "tiny")), "--grace", "1", log=folder / "log")
    long = {"prompt": "T", "max_tokens": 40, "n": 2, "sampler": "remask-cap:eta=0.9", "steps": 2000, "seed": 1}
    plugs = [server.connected() for _ in range(16)]
    try:
        for i, plug in enumerate(plugs):
            plug.sendall(raw("/v1/completions", {**long, "stream": i % 2 == 0}))
        while server.number("unmask_live_requests") < 16:
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        said = [rest(plug) for plug in plugs]
        server.process.wait(PATIENCE)
    finally:
        for plug in plugs:
            plug.close()
        ended(server)
    if "Traceback" in server.log.read_text():
        return "a traceback in the log"
    wrong = [one[:80] for one in said[1::2] if not one.startswith(b"HTTP/1.1 503 ")]
    wrong += [one[-80:] for one in said[::2] if b'event: error\ndata: {"error"' not in one or b"[DONE]" in one]
    return f"{len(wrong)} of 16 requests were not told: {wrong[0]!r}" if wrong else None


# Few calls each: memory does not depend on their number.
FULL = {"prompt": "Once", "max_tokens": 120, "n": 32, "seed": 1, "sampler": "ancestral", "steps": 4}
STEPS = {"stream": True, "events": "steps", "draft": True}
EDGES: dict[str, tuple[str, dict]] = {
    "guidance with drafts": ("/v1/completions", {**FULL, "guidance": 2.0, **STEPS}),
    "all at once": ("/v1/completions", {**FULL, "steps": 1, **STEPS}),
    "alternatives": ("/v1/completions", {**FULL, "logprobs": 20}),
    "top-p and top-k": ("/v1/completions", {**FULL, "top_p": 0.9, "top_k": 4000, "sampler": "entropy"}),
    "no repeats": ("/v1/completions", {**FULL, "no_repeat": 2}),
    "remasking": ("/v1/completions", {**FULL, "sampler": "remask-conf", **STEPS}),
    "klass": ("/v1/completions", {**FULL, "sampler": "klass", "steps": None, "max_tokens": 12}),
    "a pattern of many states": ("/v1/completions", {**FULL, "n": 4, "pattern": "[a-z ]{1,400}"}),
    "a pattern and allowed tokens": (
        "/v1/completions",
        {
            **{**FULL, "n": 1, "pattern": "[a-z ]{1,400}"},
            "allowed": [{"position": i, "tokens": [300 + i % 6, 302]} for i in range(8, 60)],
        },
    ),
    "allowed tokens": (
        "/v1/completions",
        {**FULL, "allowed": [{"position": i, "tokens": list(range(300, 1300))} for i in range(8, 120)]},
    ),
    "blanks": ("/v1/infill", {**STEPS, "text": "a [120] b", "n": 32, "sampler": "ancestral", "steps": 4}),
    "scores": ("/v1/score", {"texts": ["The dog ran to the big house. " * 12] * 2, "passes": 64}),
}


def edges(folder: Path, *, together: int = 3) -> tuple[float, dict[str, object]]:
    """Every request at the edge of the limits, some at a time, to the shipped model: the most memory, each status."""
    server = started("stories", "--limits.seconds", "1500", log=folder / "log")

    def ask(name: str) -> tuple[str, object]:
        path, body = EDGES[name]
        response = httpx.post(f"{server.address}{path}", json=body, timeout=1500)
        return name, response.status_code if response.status_code == 200 else response.text

    try:
        with ThreadPoolExecutor(together) as threads:
            found = dict(threads.map(ask, EDGES))
        return server.megabytes(), found
    finally:
        ended(server)
