"""A server under mixed load for ten minutes: nothing lost, nothing failed, nothing different from alone, memory flat.

    python bench/load.py                                the shipped `stories`, 32 clients, ten minutes
    python bench/load.py --model runs/mine --seconds 60 --clients 8

Every request is first made alone, with its seed; then all clients make them in random order, and some leave in the
middle. The exit code is 1 if an answer was lost, had a status of 500 or more, or differed from the one alone.
"""

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from serve import memory, server

Request = tuple[str, str, dict[str, Any]]  # a name, a path and a body

PROMPT = {"prompt": "Once upon a time", "max_tokens": 24}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", PROMPT),
    "eight candidates": ("/v1/completions", {**PROMPT, "n": 8}),
    "two prompts": ("/v1/completions", {**PROMPT, "prompt": ["One day", "The dog"], "n": 2}),
    "long": ("/v1/completions", {**PROMPT, "max_tokens": 100}),
    "suffix": ("/v1/completions", {**PROMPT, "suffix": " and they were happy."}),
    "stop": ("/v1/completions", {**PROMPT, "stop": [".", "!"]}),
    "temperature": ("/v1/completions", {**PROMPT, "temperature": 0.7, "top_p": 0.9, "top_k": 50, "no_repeat": 3}),
    "log-probabilities": ("/v1/completions", {**PROMPT, "logprobs": 5}),
    "ancestral": ("/v1/completions", {**PROMPT, "sampler": "ancestral", "steps": 12}),
    "remasking": ("/v1/completions", {**PROMPT, "sampler": "remask-cap:eta=0.05", "steps": 24}),
    "left to right": ("/v1/completions", {**PROMPT, "sampler": "left-to-right"}),
    "guidance": ("/v1/completions", {**PROMPT, "guidance": 1.5}),
    "pattern": ("/v1/completions", {**PROMPT, "pattern": " [a-z]{1,8}( [a-z]{1,8}){0,3}\\."}),
    "one of": ("/v1/completions", {**PROMPT, "one_of": [" there was a cat.", " there was a big dog."]}),
    "stream": ("/v1/completions", {**PROMPT, "stream": True}),
    "steps": ("/v1/completions", {**PROMPT, "stream": True, "events": "steps", "draft": True, "n": 4}),
    "infill": ("/v1/infill", {"text": "The [3] dog ran to the [4] and [2].", "n": 3}),
    "free lengths": ("/v1/infill", {"text": "The ___ dog ran.", "n": 2}),
    "score": ("/v1/score", {"texts": ["Once upon a time there was a girl.", "The dog ran."], "passes": 4}),
}
SEEDS = 3  # of each kind
CHANGING = ("id", "created")  # what may differ between two equal answers
ROUGH = (
    "token_logprobs",
    "top_logprobs",
    "confidence",
    "nats",
    "standard_error",
    "nats_per_token",
    "perplexity",
    "bits_per_byte",
)


def requests() -> list[Request]:
    return [
        (f"{kind}, seed {seed}", path, {**body, "seed": seed})
        for kind, (path, body) in KINDS.items()
        for seed in range(SEEDS)
    ]


def essence(value: Any) -> Any:
    """An answer without what may change: its id, and probabilities, whose last digits depend on the batch."""
    if isinstance(value, dict):
        return {name: essence(one) for name, one in value.items() if name not in CHANGING and name not in ROUGH}
    if isinstance(value, list):
        return [essence(one) for one in value]
    return value


def answer(response: httpx.Response) -> Any:
    """What is compared: the JSON, or the events of a stream without the drafts."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return essence(response.json())
    found = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert found[-1] == "[DONE]", found[-1]
    events = [json.loads(one) for one in found[:-1]]
    return [essence({name: one for name, one in event.items() if name != "draft"}) for event in events]


@dataclass
class Seen:
    """What the clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    left: int = 0
    seconds: list[float] = field(default_factory=list)


def client(address: str, number: int, end: float, truth: dict[str, Any], seen: Seen, leaving: float) -> None:
    """One request after another until the end; a share of them is left in the middle."""
    draw, every = random.Random(number), requests()
    with httpx.Client(base_url=address, timeout=300) as session:
        while time.monotonic() < end:
            name, path, body = draw.choice(every)
            if draw.random() < leaving:
                with httpx.Client(base_url=address, timeout=draw.uniform(0.01, 0.5)) as other:
                    try:
                        other.post(path, json=body)
                    except httpx.TransportError:
                        seen.left += 1
                continue
            began = time.monotonic()
            try:
                response = session.post(path, json=body)
                seen.statuses[response.status_code] += 1
                if response.status_code == 200 and answer(response) != truth[name]:
                    seen.different[name] += 1
            except (httpx.TransportError, AssertionError, ValueError) as error:
                seen.lost[f"{name}: {type(error).__name__}"] += 1
            seen.seconds.append(time.monotonic() - began)


def alone(address: str) -> dict[str, Any]:
    with httpx.Client(base_url=address, timeout=300) as session:
        found = {}
        for name, path, body in requests():
            response = session.post(path, json=body)
            assert response.status_code == 200, f"{name}: {response.text}"
            found[name] = answer(response)
    return found


def watched(pid: int, end: float, every: float = 5.0) -> list[float]:
    """Megabytes of the server, every few seconds."""
    found = []
    while time.monotonic() < end:
        found.append(memory(pid))
        time.sleep(every)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("stories"))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--leaving", type=float, default=0.05, help="share of requests whose client leaves early")
    asked = parser.parse_args()
    with server(asked.model, "--limits.seconds", "300") as (address, pid):
        truth = alone(address)
        print(f"{len(truth)} requests of {len(KINDS)} kinds alone; memory {memory(pid):.0f} MB", flush=True)
        seen, end = Seen(), time.monotonic() + asked.seconds
        threads = [
            threading.Thread(target=client, args=(address, i, end, truth, seen, asked.leaving))
            for i in range(asked.clients)
        ]
        for thread in threads:
            thread.start()
        sizes = watched(pid, end)
        for thread in threads:
            thread.join()
        after = memory(pid)
    half = len(sizes) // 2
    times = sorted(seen.seconds)
    print(f"{asked.clients} clients, {asked.seconds:.0f} s: {len(times)} requests, {seen.left} left by their client")
    print(f"status {dict(seen.statuses)}; lost {dict(seen.lost)}; different from alone {dict(seen.different)}")
    middle, late = times[len(times) // 2], times[int(len(times) * 0.99)]
    print(f"seconds: median {middle:.2f}, 99 % {late:.2f}, most {times[-1]:.2f}")
    print(
        f"memory: first half at most {max(sizes[:half] or sizes):.0f} MB, second half at most "
        f"{max(sizes[half:]):.0f} MB, at the end {after:.0f} MB"
    )
    failed = sum(count for status, count in seen.statuses.items() if status >= 500)
    return min(1, failed + seen.lost.total() + seen.different.total())


if __name__ == "__main__":
    sys.exit(main())
