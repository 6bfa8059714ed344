"""A network that takes its time, and notes its calls."""

import threading


class Slow:
    """A trunk that waits before it answers; `rows` has the number of rows of each call."""

    def __init__(self, trunk, *, seconds: float = 0.0) -> None:
        self.inner, self.seconds = trunk, seconds
        self.rows: list[int] = []

    def __call__(self, tokens, sigma, **options):
        self.rows.append(len(tokens))
        threading.Event().wait(self.seconds)
        return self.inner(tokens, sigma, **options)
