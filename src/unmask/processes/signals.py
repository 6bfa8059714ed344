"""Signals: SIGTERM or Ctrl-C stops all processes after the same step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from unmask.processes.team import Team


@contextmanager
def stopping() -> Iterator[list[int]]:
    """A list to which SIGTERM or Ctrl-C adds the signal's number; a second signal ends the process at once.

    Only a program's main thread hears signals: in another the list stays empty.
    """
    stop: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def note(number: int, frame: FrameType | None) -> None:
        stop.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def halt_signal(stop: list[int], team: Team) -> int:
    """The signal that any process has received, or 0: all processes stop after the same step."""
    return team.most(stop[0] if stop else 0)
