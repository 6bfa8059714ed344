"""A network that takes its time, and notes its calls."""

import threading


class Slow:
    """A network that waits before it answers; `rows` has the number of rows of each call."""

    def __init__(self, run, *, seconds: float = 0.0) -> None:
        self.inner, self.seconds = run, seconds
        self.rows: list[int] = []

    def __call__(self, p):
        self.rows.append(sum(len(part.x) for part in getattr(p.sees, "parts", (p,))))
        threading.Event().wait(self.seconds)
        return self.inner(p)
