"""The screen of a training run: a live bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from unmask.training.log import Lines, Screen


class LiveBar:
    """A bar at the bottom of a terminal, with the latest numbers; lines stay above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}")
        self.bar = Bar(*columns, console=console)
        self.task = self.bar.add_task("", total=None, now="")

    def say(self, line: str) -> None:
        self.console.print(line, markup=False)

    def advance(self, step: int, total: int, name: str, numbers: Sequence[str]) -> None:
        if not self.bar.live.is_started:
            self.bar.start()
        learned, _, speed, left = numbers
        self.bar.update(
            self.task, description=name, completed=step, total=total, now="  ".join((learned, speed, left))
        )

    def close(self) -> None:
        if self.bar.live.is_started:
            self.bar.stop()


def screen() -> Screen:
    """The screen that standard error allows."""
    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    return LiveBar(console) if console.is_terminal else Lines()
