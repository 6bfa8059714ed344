"""How OpenMP's threads should wait, and how many there should be: alone, and beside two busy loops.

    python bench/threads.py              some minutes
    python bench/threads.py --rounds 9 --only sample

Each way has a process of its own, and all of them do the same piece of work in turns, so that a busy moment hits all
alike. Figures are medians: wall-clock seconds, after the stroke processor seconds, and in brackets both as multiples
of one thread's in the same round, which is what may be compared on a machine that is never quiet.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch  # noqa: F401  # before unmask, which would set a policy
import tyro

import unmask  # isort: skip
from unmask.openmp import POLICIES

WAYS: dict[str, dict[str, str]] = {
    "2, spinning": {"OMP_NUM_THREADS": "2"},  # libgomp's default
    "2, spins 1,000": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "1000"},
    "2, sleeping": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
    "1": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
}
ALONE = "1"  # what the others are compared with
BURN = (
    "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with its parent, however that ends
)


@dataclass(frozen=True)
class Settings:
    rounds: int = 5
    """How often every way does every piece of work."""
    loops: int = 2
    """Busy loops in every second line."""
    only: str = ""
    """Only the pieces of work whose name contains this."""


def training(width: int, blocks: int, batch: int) -> Callable[[], Any]:
    from train_step import ours
    from unmask.model.backbones.transformer import Architecture

    steps = ours(Architecture(4097, length=128, width=width, blocks=blocks, heads=4, dropout=0.1), batch)
    return lambda: next(steps)


def sampling(tokens: int, texts: int = 1) -> Callable[[], Any]:
    return partial(unmask.sample, unmask.load("stories"), n=texts, length=tokens, seed=1)


def serving(clients: int, tokens: int) -> Callable[[], Any]:
    """Requests that arrive together, through the whole application."""
    from starlette.testclient import TestClient

    from unmask.serving.http.app import create
    from unmask.serving.settings import ServerSettings

    app = create(unmask.load("stories"), ServerSettings(name="stories"))
    client = TestClient(app, base_url="http://127.0.0.1").__enter__()

    def ask(seed: int) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": tokens, "seed": seed}
        client.post("/v1/completions", json=body).raise_for_status()

    pool = ThreadPoolExecutor(clients)
    return lambda: list(pool.map(ask, range(clients)))


JOBS: dict[str, Callable[[], Callable[[], Any]]] = {
    "train 128 x 4, batch 16": lambda: training(128, 4, 16),
    "train 256 x 6, batch 32": lambda: training(256, 6, 32),
    "sample 48 tokens": lambda: sampling(48),
    "sample 8 x 48 tokens": lambda: sampling(48, 8),
    "serve 4 clients, 24 tokens": lambda: serving(4, 24),
}


def work(name: str) -> None:
    """The process of one way: does its work whenever its parent asks, and answers with both times."""
    job = JOBS[name]()
    job()
    print(flush=True)
    for _ in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        job()
        print(json.dumps([time.perf_counter() - wall, time.process_time() - processor]), flush=True)
    os._exit(0)  # the server of the test client has threads


@contextmanager
def beside(loops: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def ready(name: str) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A process for each way to do a piece of work; one that did several would have more teams of threads."""
    bare = {key: value for key, value in os.environ.items() if key not in POLICIES}
    processes = {}
    for way, given in WAYS.items():
        processes[way] = subprocess.Popen(
            [sys.executable, __file__, "work", name],
            env={**bare, **given},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes[way].stdout.readline()
    try:
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def cells_of(processes: dict[str, subprocess.Popen[str]], rounds: int) -> list[str]:
    """The medians of each way, and of its ratios to one thread in the same round."""
    times: dict[str, list[list[float]]] = {way: [] for way in processes}
    for _ in range(rounds):
        for way, process in processes.items():
            process.stdin.write("\n")
            process.stdin.flush()
            times[way].append(json.loads(process.stdout.readline()))
    cells = []
    for values in times.values():
        wall, processor = (median(column) for column in zip(*values, strict=True))
        pairs = list(zip(values, times[ALONE], strict=True))
        ratios = [median(mine[i] / alone[i] for mine, alone in pairs) for i in (0, 1)]
        cells.append(f"{wall:.2f} / {processor:.2f} ({ratios[0]:.2f} x / {ratios[1]:.2f} x)")
    return cells


def main(settings: Settings) -> None:
    print("| work | busy loops | " + " | ".join(WAYS) + " |\n|---|---|" + "---|" * len(WAYS))
    for name in JOBS:
        if settings.only in name:
            with ready(name) as processes:
                for loops in (0, settings.loops):
                    with beside(loops):
                        cells = cells_of(processes, settings.rounds)
                    print(f"| {name} | {loops} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nload average at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2])
    else:
        main(tyro.cli(Settings, description=__doc__))
