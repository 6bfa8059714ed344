"""How work of several processes ends: at a signal all after the same step, at a mistake with one message."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from unmask.errors import UserError
from unmask.training.parallel import Lost, Team, Told

GRACE = 2.0  # seconds in which rank 0 says what all processes have found


@contextmanager
def said_once(team: Team) -> Iterator[None]:
    """What all processes find wrong is said by rank 0 alone; what one of the others finds, by that one."""
    try:
        yield
    except UserError as error:
        if team.rank == 0 or isinstance(error, Lost):
            raise
        time.sleep(GRACE)  # if rank 0 ends too, torchrun ends this process meanwhile
        if isinstance(error, Told):
            sys.exit(2)
        raise UserError(f"process {team.rank}: {error}") from None


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
