"""Run a function in a fork with limits on memory and CPU time, and say what came of it.

CPU seconds are counted, not wall time, so a busy machine fails nothing. A process that sleeps for a minute without
using any CPU (it waits for a FIFO, or for itself) is ended too.
"""

import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from unmask.errors import UserError

MEMORY = 1 << 30  # bytes beyond what the process has before
SECONDS = 20  # of CPU
WAIT = 60  # seconds of sleep without any CPU time


def confined(work: Callable[[], object], *, memory: int = MEMORY, seconds: int = SECONDS) -> str:
    """What happened: `done`, `refused: ...` for a UserError, or `failed: ...` for everything else."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of Python warn of forks beside threads
        child = os.fork()
    if not child:
        os.close(reader)
        try:
            told = outcome(work, memory, seconds)
            os.write(writer, told.encode("utf-8", "backslashreplace")[-4000:])
        finally:
            os._exit(0)
    os.close(writer)
    status = ended(child)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read().decode("utf-8", "replace")
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        why = {"SIGXCPU": f": {seconds} s of CPU", "SIGUSR1": f": {WAIT} s of sleep"}.get(name, "")
        return f"failed: ended by {name}{why}"
    return told or "failed: no answer"


def ended(child: int) -> int:
    """Wait for a process; end it when it sleeps too long. Returns its exit status."""
    pause, used, slept = 0.002, "", 0.0
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(pause)
        pause = min(2 * pause, 0.25)
        state, *rest = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        now = " ".join(rest[10:12])  # CPU time in user and kernel mode
        slept = slept + pause if state in "SD" and now == used else 0.0
        used = now
        if slept > WAIT:
            os.kill(child, signal.SIGUSR1)


def outcome(work: Callable[[], object], memory: int, seconds: int) -> str:
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    sys.stdout = sys.stderr = os.fdopen(quiet, "w")  # pytest puts files of its own there
    used = sum(os.times()[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + seconds, int(used) + seconds + 5))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        work()
    except UserError as error:
        return f"refused: {str(error)[:300]}"
    except BaseException as error:
        return f"failed: {''.join(traceback.format_exception(error))[-3000:].strip()}"
    return "done"


def failures(attempt: Callable[[int, Path], str | None], seeds: range, where: Path) -> dict[int, str]:
    """What went wrong in the tries of an attack, by seed."""
    found = {}
    for seed in seeds:
        folder = where / str(seed)
        folder.mkdir()
        told = attempt(seed, folder)
        if told is not None:
            found[seed] = told
    return found
