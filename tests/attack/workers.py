"""Workers of `unmask serve --workers` that die, stop or lose their checkpoint: answers stay those of the start."""

import atexit
import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import clients
import httpx
import models

about = "kill -9, SIGSTOP and moved checkpoints of the workers of one server, under requests"
usual = 200
tally: Counter[str] = Counter()  # tries of each kind

COMING = 900  # seconds until a worker must be back: a pause of a minute, and what a busy machine needs to load torch

shared: list[clients.Server] = []


def one_server() -> clients.Server:
    """The server of all tries: a run whose `best` is a link to the first of two checkpoints."""
    if not shared:
        folder = tempfile.TemporaryDirectory(prefix="attack-workers-")
        atexit.register(folder.cleanup)
        run = Path(folder.name) / "run"
        for name, seed in (("a", 0), ("b", 1)):
            models.saved(run / "checkpoints" / name, seed=seed)
        (run / "best").symlink_to("checkpoints/a")
        shared.append(clients.started(str(run), "--workers", "2", log=Path(folder.name) / "log"))
        atexit.register(lambda: clients.ended(shared[0]))
        wait_for(lambda: len(ready(shared[0])) == 2)
        shared[0].truth = shared[0].text()
    return shared[0]


def workers(server: clients.Server) -> list[int]:
    """The process ids of the workers: children of the server that are no helpers of multiprocessing."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if "resource_tracker" not in command_line(child)]


def ready(server: clients.Server) -> list[int]:
    """Those that have loaded the model, by the server's log: until then a worker needs its folder."""
    said = server.log.read_text()
    return [pid for pid in workers(server) if f"worker process {pid} is ready" in said]


def command_line(pid: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return "resource_tracker"  # it has ended


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + COMING
    while not condition():
        assert time.monotonic() < end, "the workers did not come back"
        time.sleep(0.05)


def answers(server: clients.Server, count: int) -> set[str]:
    """The answers to one request, sent several times; a connection that a kill cut is not an answer."""
    found = set()
    for _ in range(count):
        with contextlib.suppress(httpx.TransportError):
            found.add(server.text())
    return found


def died(server: clients.Server, draw: random.Random) -> str | None:
    """One worker, or both, killed with requests under way."""
    for _ in range(draw.choice([0, 1, 8])):
        plug = server.connected()
        plug.sendall(clients.raw(*clients.some_body(draw)))
        plug.close()
    pids = workers(server)
    for pid in draw.sample(pids, draw.randint(1, len(pids))):
        os.kill(pid, signal.SIGKILL)
    return None


def paused(server: clients.Server, draw: random.Random) -> str | None:
    """One worker stopped for a moment, as by a debugger or a machine that sleeps."""
    pid = draw.choice(workers(server))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(draw.uniform(0.1, 1.0))
    os.kill(pid, signal.SIGCONT)
    return None


def moved(server: clients.Server, draw: random.Random) -> str | None:
    """The link `best` moved to another checkpoint, or the checkpoint gone, when a worker dies."""
    run = server.log.parent / "run"
    gone = draw.random() < 0.5
    if gone:
        (run / "checkpoints").rename(run / "away")
    else:
        (run / "best").unlink()
        (run / "best").symlink_to("checkpoints/b")
    os.kill(draw.choice(workers(server)), signal.SIGKILL)
    found = answers(server, 6)
    time.sleep(draw.uniform(0, 2))
    found |= answers(server, 6)
    if gone:
        (run / "away").rename(run / "checkpoints")
    else:
        (run / "best").unlink()
        (run / "best").symlink_to("checkpoints/a")
    return None if found <= {server.truth} else "another model answers"


KINDS = [died, died, paused, moved]


def attempt(seed: int, folder: Path) -> str | None:
    draw, server = random.Random(seed), one_server()
    kind = draw.choice(KINDS)
    tally[kind.__name__] += 1
    try:
        told = kind(server, draw)
        wait_for(lambda: len(ready(server)) == 2)
        if not told and answers(server, 6) != {server.truth}:
            told = "the server gives another answer than before"
        if not told and server.process.poll() is not None:
            told = f"the server ended with code {server.process.returncode}"
    except (TimeoutError, AssertionError, OSError) as error:
        told = f"{type(error).__name__}: {error}"
    if not told and "Traceback" in server.log.read_text():
        told = "a traceback in the log"
    return f"{kind.__name__}: {told}" if told else None


def orphaned(folder: Path) -> str | None:
    """A parent that is killed: its workers end too."""
    model = models.saved(folder / "tiny")
    server = clients.started(str(model), "--workers", "2", log=folder / "log")
    try:
        wait_for(lambda: len(workers(server)) == 2)
        pids = workers(server)
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    finally:
        clients.ended(server)
        shutil.rmtree(model)
    return None
