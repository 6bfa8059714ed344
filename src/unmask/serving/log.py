"""The log of failures: by default their type and where they happened, because a traceback may contain a prompt."""

import logging
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

log = logging.getLogger("unmask.serving")

Report = Callable[[BaseException], None]

NOBODY = "-"
FRAMES = 8  # the innermost ones that are logged
request_id: ContextVar[str] = ContextVar("request_id", default=NOBODY)  # of the request that is being answered


def reporter(*, tracebacks: bool = False) -> Report:
    """A function that logs a failure inside the server."""

    def report(error: BaseException) -> None:
        where = " < ".join(places(error))
        log.error(
            "%s failure: %s in %s",
            request_id.get(),
            type(error).__name__,
            where or "no file",
            exc_info=error if tracebacks else None,
        )

    return report


def places(error: BaseException) -> list[str]:
    """File, line and function of the innermost calls of an error, the last first: no value of any variable."""
    frames = traceback.extract_tb(error.__traceback__, limit=-FRAMES)
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)]
