"""Signals: SIGTERM or Ctrl-C stops all processes after the same step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from unmask.processes.team import Team


@contextmanager
def stopping() -> Iterator[list[int]]:
    """A list to which SIGTERM or Ctrl-C adds the signal's number; a second signal ends the process at once."""
    stop: list[int] = []
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


def halted(stop: list[int], team: Team) -> int:
    """The signal that any process has received, or 0: all processes stop after the same step."""
    return team.most(stop[0] if stop else 0)
