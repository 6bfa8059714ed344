"""How many threads compute on the CPU, and whether they get the cores that they ask for.

The number changes the order of sums, and so the last bits of results: a rule chooses it for samples, so that a seed
gives the same text again, and a trial for a training run, which stores it.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from unmask.errors import UserError

Threads = int | Literal["auto"]

COUNT = "OMP_NUM_THREADS"
MOST_THREADS = 1024  # a greater number is most likely a typing error
PER_THREAD = 2e9  # FLOPs of a pass from which another thread gains more than waiting for it costs: bench/threads.py
SHORT = 0.25  # seconds of the work for which a trial is worth its time
ROUNDS = 3  # of a trial
GAIN = 1.1  # more threads than needed have to be so many times as fast
CROWDED = 0.5  # share of the time that threads waited for a core, from which a hint is due
SPENT = 10.0  # seconds of computing, below which there is no hint


def check_threads(threads: Threads) -> None:
    if threads != "auto" and not 1 <= threads <= MOST_THREADS:
        raise UserError(f"--threads must be auto or a number from 1 to {MOST_THREADS:,}, not {threads:,}.")


def chosen_outside() -> bool:
    """Whether the user, a study or torchrun has set the number of threads for this process."""
    return COUNT in os.environ


def use_threads(threads: Threads, *, flops: float | None = None) -> None:
    """Compute with so many threads; auto: as many as passes of so many FLOPs can use, all if that is not known."""
    check_threads(threads)
    if threads != "auto":
        torch.set_num_threads(threads)
    elif flops is not None and not chosen_outside():
        torch.set_num_threads(max(1, min(torch.get_num_threads(), int(flops / PER_THREAD))))


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Compute with so many threads, here and in child processes; then with as many as before."""
    before, outside = torch.get_num_threads(), os.environ.get(COUNT)
    torch.set_num_threads(threads)
    os.environ[COUNT] = str(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if outside is None:
            del os.environ[COUNT]
        else:
            os.environ[COUNT] = outside


def fewest_as_fast(work: Callable[[], object], most: int) -> int:
    """The smallest number of threads, up to `most`, with which the work takes hardly longer than with any other.

    Each number is tried in turns, and its best time counts: other programs only make it slower. Long work is not
    tried, and gets all threads.
    """
    counts = sorted({1 << i for i in range(most.bit_length()) if 1 << i <= most} | {most})
    with computing_with(most):
        work()  # the first time of anything is slower
        if seconds_of(work) > SHORT:
            return most
    best = dict.fromkeys(counts, float("inf"))
    for _ in range(ROUNDS):
        for count in counts:
            with computing_with(count):
                best[count] = min(best[count], seconds_of(work))
    return next(count for count in counts if best[count] <= GAIN * min(best.values()))


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def seconds_run_and_waited() -> tuple[float, float]:
    """Seconds that the threads of this process ran, and that they were ready to run and had no core. (Linux.)"""
    ran = waited = 0.0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            numbers = path.read_text(encoding="ascii").split()
        except OSError:  # the thread has just ended
            continue
        ran, waited = ran + int(numbers[0]) / 1e9, waited + int(numbers[1]) / 1e9
    return ran, waited


@contextmanager
def watched_threads(say: Callable[[str], None]) -> Iterator[None]:
    """Whatever number of threads is set inside is undone; says so if they waited for cores that others had."""
    before, began = torch.get_num_threads(), seconds_run_and_waited()
    try:
        yield
        ran, waited = (after - at_first for after, at_first in zip(seconds_run_and_waited(), began, strict=True))
        if hint := busy_hint(torch.get_num_threads(), ran, waited):
            say(hint)
    finally:
        torch.set_num_threads(before)


def busy_hint(threads: int, ran: float, waited: float) -> str:
    """A word for threads that ran and waited for a core so many seconds; empty: nothing to say."""
    if threads == 1 or ran + waited < SPENT or waited < CROWDED * (ran + waited):
        return ""
    return (
        f"the machine is busy: {threads} threads waited {waited / (ran + waited):.0%} of their time for a core. "
        "--threads 1 may be faster."
    )
