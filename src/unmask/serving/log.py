"""Reports: what the log says. Failures by their name alone, for a traceback may show a prompt."""

import logging
from collections.abc import Callable

log = logging.getLogger("unmask.serving")

Report = Callable[[BaseException], None]


def reporter(*, tracebacks: bool = False) -> Report:
    """How a failure inside the server is written down."""

    def report(error: BaseException) -> None:
        log.error("failure: %s", type(error).__name__, exc_info=error if tracebacks else None)

    return report
