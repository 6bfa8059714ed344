"""The log of failures: by default only their type, because a traceback may contain a prompt."""

import logging
from collections.abc import Callable

log = logging.getLogger("unmask.serving")

Report = Callable[[BaseException], None]


def reporter(*, tracebacks: bool = False) -> Report:
    """A function that logs a failure inside the server."""

    def report(error: BaseException) -> None:
        log.error("failure: %s", type(error).__name__, exc_info=error if tracebacks else None)

    return report
