"""Signals: SIGTERM or Ctrl-C stops the work of all processes after the same step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from unmask.processes.team import Team


@contextmanager
def stopping() -> Iterator[list[int]]:
    """A list that SIGTERM or Ctrl-C fills with the signal's number; a second one ends the process at once."""
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
    """The signal that any process was sent, or 0: all processes stop after the same step."""
    return team.most(stop[0] if stop else 0)
