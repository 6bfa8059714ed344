"""Run a function in a fork with limits on memory and CPU time, and say what came of it.

CPU seconds are counted, not wall time, so a busy machine fails nothing; a process that only waits (for a FIFO) is
ended after five minutes.
"""

import os
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from unmask.errors import UserError

MEMORY = 1 << 30  # bytes beyond what the process has before
SECONDS = 20  # of CPU
WAIT = 300  # of wall time, for what uses no CPU


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
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        why = {"SIGXCPU": f": {seconds} s of CPU", "SIGALRM": f": {WAIT} s of waiting"}.get(name, "")
        return f"failed: ended by {name}{why}"
    return told or "failed: no answer"


def outcome(work: Callable[[], object], memory: int, seconds: int) -> str:
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    used = sum(os.times()[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + seconds, int(used) + seconds + 5))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.alarm(WAIT)
    try:
        work()
    except UserError as error:
        return f"refused: {str(error)[:300]}"
    except BaseException as error:
        return f"failed: {''.join(traceback.format_exception(error))[-3000:].strip()}"
    return "done"
