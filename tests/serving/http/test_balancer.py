"""Two replicas behind a real nginx with the configuration of deploy/: `make cluster`."""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from servers import command

pytestmark = pytest.mark.cluster
CONFIGURATION = Path(__file__).parents[3] / "deploy" / "nginx.conf"
BODY = {"prompt": "The ", "max_tokens": 40, "n": 8, "sampler": "entropy"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def balancer(folder: Path, replicas: list[str]) -> Iterator[str]:
    """The nginx of deploy/, on a free port, before these replicas."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    text, port = CONFIGURATION.read_text(), free_port()
    for number, address in enumerate(replicas, 1):
        text = text.replace(f"replica{number}:8000", address.removeprefix("http://"))
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    whole = f"pid {folder}/pid; error_log {folder}/error.log; events {{}} http {{ access_log off; {places} {text} }}"
    (folder / "nginx.conf").write_text(whole)
    process = subprocess.Popen(
        ["nginx", "-p", folder, "-c", folder / "nginx.conf", "-g", "daemon off; master_process off;"],
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(400):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def drawn(address: str, seed: int) -> list[str]:
    answer = httpx.post(f"{address}/v1/completions", json={**BODY, "seed": seed}, timeout=120)
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def streamed(address: str, seed: int, begun: threading.Event) -> tuple[list[str], bool]:
    """The texts of a stream, and whether it was ended as a whole one is; `begun` once its first event is here."""
    joined, done = [""] * BODY["n"], False
    with (
        contextlib.suppress(httpx.TransportError),
        httpx.stream(
            "POST", f"{address}/v1/completions", json={**BODY, "seed": seed, "stream": True}, timeout=60
        ) as answer,
    ):
        assert answer.status_code == 200
        begun.set()
        for line in answer.iter_lines():
            done = done or line == "data: [DONE]"
            if line.startswith("data: {") and (choices := json.loads(line.removeprefix("data: ")).get("choices")):
                joined[choices[0]["index"]] += choices[0]["text"]
    return joined, done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_acknowledged_request_is_lost_when_a_replica_ends(masked, tmp_path, number):
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(command(str(masked.folder), "--hosts", "127.0.0.1")) for _ in range(2)]
        addresses = [address for _, address in replicas]
        front = stack.enter_context(balancer(tmp_path, addresses))
        threads = stack.enter_context(ThreadPoolExecutor(14))
        seeds = range(40)
        whole = [drawn(addresses[1], seed) for seed in seeds]
        first = [drawn(addresses[0], seed) for seed in seeds[:2]]
        assert first == whole[:2]  # the same answer from each replica

        begun = [threading.Event() for _ in range(6)]
        streams = [threads.submit(streamed, front, seed, event) for seed, event in enumerate(begun)]
        for event in begun:
            assert event.wait(60)
        answered: list[int] = []

        def ask(seed: int) -> list[str]:
            found = drawn(front, seed)
            answered.append(seed)
            return found

        asked = [threads.submit(ask, seed) for seed in seeds]
        while not (len(answered) > 3 and live(addresses[0])) and len(answered) < len(seeds):
            time.sleep(0.005)
        under_way = len(seeds) - len(answered)
        replicas[0][0].send_signal(number)
        assert [one.result() for one in asked] == whole
        assert under_way > 0
        for seed, stream in enumerate(streams):
            joined, done = stream.result()
            if number == signal.SIGTERM:
                assert done
            if done:
                assert joined == whole[seed]
            else:  # what was cut off says so: it has no end; what came is the beginning
                assert all(text.startswith(part) for text, part in zip(whole[seed], joined, strict=True))
        replicas[0][0].wait(60)
        assert drawn(front, 3) == whole[3]


def live(address: str) -> float:
    found = re.search(r"^unmask_live_requests (\S+)", httpx.get(f"{address}/metrics", timeout=60).text, re.MULTILINE)
    assert found
    return float(found[1])
