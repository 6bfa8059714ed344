"""The server under load: real HTTP clients on loopback against `unmask serve` in a process of its own.

    python bench/serve.py                     a small model made on the fly, about three minutes
    python bench/serve.py --model runs/mine --seconds 60 --bodies 10000

Measured: requests a second and latency with 1, 8 and 32 clients, batched and one at a time (a server whose calls hold
one request), beside what the network alone gains from such a call; the same with requests of a quarter of the tokens
up to all of them, and the share of padding among the positions of a call; answers compared with those of a single
client; clients killed in mid-stream; fuzzed bodies; memory.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch

from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load, save
from unmask.model.passes.whole import logits_at
from unmask.text.tokens.vocabulary import byte

SEEDS = 16  # different requests


@dataclass(frozen=True)
class Load:
    """What some clients saw."""

    requests: int
    seconds: float
    latencies: list[float]
    wrong: int  # answers that differ from what a single client got

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    def percentile(self, share: float) -> float:
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def small_model(folder: Path, *, width: int, blocks: int, length: int) -> Path:
    torch.manual_seed(0)
    tokenizer = byte()
    network = Transformer(Architecture(vocab=tokenizer.size, length=length, width=width, blocks=blocks, heads=4))
    torch.nn.init.normal_(network.output_layer.linear.weight, std=0.5)
    return save(folder / "small", network, mask=tokenizer.mask, tokenizer=tokenizer)


@contextmanager
def server(model: Path, *options: str) -> Iterator[tuple[str, int]]:
    """`unmask serve` once it answers; gives its address and its process id."""
    arguments = [sys.executable, "-m", "unmask", "serve", str(model), "--port", "0", *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        found = re.search(r"http://\S+:\d+", process.stdout.readline())
        address = found[0]
        while True:
            try:
                httpx.get(f"{address}/health", timeout=1)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield address, process.pid
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def body(seed: int, tokens: int) -> dict:
    return {"prompt": "The ", "max_tokens": tokens, "seed": seed}


def of_seed(seed: int, tokens: int, mixed: bool) -> int:
    """The tokens of a request: all, or a quarter to all of them, by its seed."""
    return tokens // 4 + seed * (tokens - tokens // 4) // (SEEDS - 1) if mixed else tokens


def answers_of(address: str, tokens: int, *, mixed: bool = False) -> dict[int, str]:
    """The right answers by seed, asked for one by one."""
    found = {}
    for seed in range(SEEDS):
        asked = body(seed, of_seed(seed, tokens, mixed))
        answer = httpx.post(f"{address}/v1/completions", json=asked, timeout=300).json()
        found[seed] = answer["choices"][0]["text"]
    return found


def loaded(
    address: str, *, clients: int, seconds: float, tokens: int, truth: dict[int, str], mixed: bool = False
) -> Load:
    """Clients that each send one request after another; `truth` holds the right answers by seed."""
    latencies: list[float] = []
    wrong: list[int] = []
    end = time.perf_counter() + seconds

    def run(number: int) -> None:
        draw = random.Random(number)
        with httpx.Client(base_url=address, timeout=300) as client:
            while time.perf_counter() < end:
                seed = draw.randrange(len(truth))
                began = time.perf_counter()
                answer = client.post("/v1/completions", json=body(seed, of_seed(seed, tokens, mixed))).json()
                latencies.append(time.perf_counter() - began)
                if answer.get("choices", [{}])[0].get("text") != truth[seed]:
                    wrong.append(seed)

    began = time.perf_counter()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Load(len(latencies), time.perf_counter() - began, latencies, len(wrong))


def ceiling(model: Path, *, rows: int, tokens: int, rounds: int = 10) -> float:
    """What batching can gain at most here: `rows` texts one by one through the network, against all in one call."""
    ready = load(model)

    def seconds(count: int) -> float:
        x = torch.full((count, tokens), ready.mask)
        asked = torch.arange(count) * tokens + tokens // 2  # one place of each, as the exact sampler asks
        began = time.perf_counter()
        logits_at(ready.network, x, torch.zeros(count), asked)
        return time.perf_counter() - began

    with torch.inference_mode():
        seconds(1), seconds(rows)
        # In turn, so that whatever else the machine does slows both.
        spent = [(sum(seconds(1) for _ in range(rows)), seconds(rows)) for _ in range(rounds)]
    apart, together = (sum(times) for times in zip(*spent, strict=True))
    return apart / together


def killed(address: str, *, clients: int, tokens: int) -> tuple[int, float]:
    """Clients that vanish in mid-stream; what the server still holds a second later, and how long the next waits."""
    port = int(address.rsplit(":", 1)[1])
    plugs = []
    for seed in range(clients):
        content = json.dumps({**body(seed, tokens), "stream": True, "events": "steps"}).encode()
        plug = socket.create_connection(("127.0.0.1", port))
        head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        plug.sendall("\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content)
        plugs.append(plug)
    for plug in plugs:
        plug.recv(64)
        plug.close()
    time.sleep(1)
    metrics = httpx.get(f"{address}/metrics").text
    live = float(re.search(r"^unmask_live_requests (\S+)", metrics, re.M)[1])
    began = time.perf_counter()
    httpx.post(f"{address}/v1/completions", json=body(0, tokens), timeout=300)
    return int(live), time.perf_counter() - began


def fuzzed(address: str, count: int) -> dict[int, int]:
    """The statuses that random bodies get."""
    names = [
        "prompt",
        "suffix",
        "max_tokens",
        "n",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "stream",
        "text",
        "tokens",
    ]
    names += ["texts", "passes", "sampler", "steps", "events", "draft", "model", "top_k", "other"]
    names += ["pattern", "one_of", "form", "whole", "exact_length", "allowed", "guidance"]
    draw, statuses = random.Random(0), dict[int, int]()

    def value(depth: int = 0) -> object:
        simple = [None, True, 0, 1, -1, 2, 10**20, 0.5, "", "a", "[2]", "___", "\ud800", "\x00", "é漢", 1e400, -0.0]
        simple += ["[a-f]+", "a(b", "(.*a){9}", "<int> <word>", "<x>", "remask-conf", "entropy", 0.9, 7]
        if depth < 3 and draw.random() < 0.25:
            inner = [value(depth + 1) for _ in range(draw.randrange(4))]
            return inner if draw.random() < 0.7 else {draw.choice(names): one for one in inner}
        return draw.choice(simple)

    with httpx.Client(base_url=address, timeout=300) as client:
        for _ in range(count):
            path = draw.choice(["/v1/completions", "/v1/infill", "/v1/score"])
            sent = json.dumps({draw.choice(names): value() for _ in range(draw.randrange(5))}).encode()
            if draw.random() < 0.2:  # damage
                at = draw.randrange(len(sent) + 1)
                sent = sent[:at] + bytes(draw.randrange(256) for _ in range(3)) + sent[at:]
            status = client.post(path, content=sent, headers={"Content-Type": "application/json"}).status_code
            statuses[status] = statuses.get(status, 0) + 1
    return statuses


def padding(address: str) -> tuple[float, float]:
    """Positions of joint calls so far, and the padding among them."""
    metrics = httpx.get(f"{address}/metrics").text
    found = [re.search(rf"^unmask_{name}_total (\S+)", metrics, re.M) for name in ("positions", "padded_positions")]
    return tuple(0.0 if one is None else float(one[1]) for one in found)


def memory(pid: int) -> float:
    """Megabytes in use by a process."""
    with open(f"/proc/{pid}/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def report(name: str, load: Load) -> None:
    median, worst = statistics.median(load.latencies), load.percentile(0.99)
    print(
        f"{name:<28} {load.rate:7.2f} requests/s   median {1000 * median:7.0f} ms   99 % {1000 * worst:7.0f} ms   "
        f"{load.requests} answered, {load.wrong} wrong",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seconds", type=float, default=10, help="for each number of clients")
    parser.add_argument("--tokens", type=int, default=24, help="drawn in each request")
    parser.add_argument("--bodies", type=int, default=1000, help="fuzzed")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = asked.model or small_model(Path(folder), width=asked.width, blocks=asked.blocks, length=128)
        print(
            f"{load(model).num_parameters:,} parameters, {torch.get_num_threads()} threads, "
            f"{asked.tokens} tokens a request"
        )
        rows = 4 + asked.tokens
        alone = ("--limits.positions", str(rows))  # no room for a second request in a call
        with server(model) as (address, pid), server(model, *alone) as (other, _):
            truth = answers_of(address, asked.tokens)
            how = {"seconds": asked.seconds, "tokens": asked.tokens, "truth": truth}
            for clients in asked.clients:
                batched, single = (loaded(where, clients=clients, **how) for where in (address, other))
                report(f"batched, {clients} clients", batched)
                report(f"one at a time, {clients} clients", single)
                gain = ceiling(model, rows=clients, tokens=rows)
                print(f"{'':<28} {batched.rate / single.rate:.2f} times as fast; the network alone {gain:.2f} times")
            several = {**how, "truth": answers_of(address, asked.tokens, mixed=True), "mixed": True}
            for clients in asked.clients:
                before = padding(address)
                report(f"several lengths, {clients} clients", loaded(address, clients=clients, **several))
                positions, padded = (now - then for now, then in zip(padding(address), before, strict=True))
                print(f"{'':<28} {padded / max(positions, 1):.1%} of {positions:,.0f} positions were padding")
            before = memory(pid)
            live, waited = killed(address, clients=32, tokens=100)
            print(
                f"32 clients killed in mid-stream: {live} still live after 1 s, the next answer took {waited:.2f} s"
            )
            print(f"{asked.bodies} fuzzed bodies: {dict(sorted(fuzzed(address, asked.bodies).items()))}")
            loaded(address, clients=8, **how)
            print(f"memory {before:.0f} MB before these, {memory(pid):.0f} MB after")


if __name__ == "__main__":
    main()
