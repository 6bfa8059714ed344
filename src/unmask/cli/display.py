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
        texts = ("{task.completed:.0f}/{task.total:.0f}", "{task.fields[left]}", "{task.fields[now]}")
        self.bar = Bar(TextColumn("{task.description}"), BarColumn(), *map(TextColumn, texts), console=console)
        self.task = self.bar.add_task("", total=0, now="", left="")

    def say(self, line: str) -> None:
        self.console.print(line, markup=False)

    def advance(self, step: int, total: int, name: str, numbers: Sequence[str]) -> None:
        learned, _, speed, left = numbers
        self.bar.update(self.task, now="  ".join((learned, speed)))
        self.tick(step, total, name, left)

    def tick(self, step: int, total: int, name: str, left: str) -> None:
        if not self.bar.live.is_started:
            self.bar.start()
        self.bar.update(self.task, description=name, completed=step, total=total, left=left)

    def close(self) -> None:
        if self.bar.live.is_started:
            self.bar.stop()


def screen() -> Screen:
    """The screen that standard error allows."""
    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    return LiveBar(console) if console.is_terminal else Lines()
