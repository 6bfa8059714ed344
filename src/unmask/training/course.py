"""The course of a run: updates, and between them validation and checkpoints; `Stage` and `Trial` are courses.

A run that was stopped by a signal, or that its caller has left, is saved and goes on bit for bit.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from unmask.errors import UserError
from unmask.processes.team import Told
from unmask.training import state
from unmask.training.loop import Diverged, Progress
from unmask.training.note import Point


@runtime_checkable
class Course(Protocol):
    """What a run does around its updates."""

    @property
    def advice(self) -> str:
        """What helps against a loss that is NaN or infinite."""

    @property
    def out(self) -> Path:
        """The folder of its checkpoints."""

    def steps(self, start: int) -> Iterator[Progress]:
        """The updates from step `start` to the last."""

    def halted(self) -> bool:
        """Whether a signal was received."""

    def follow(self, point: Point, progress: Progress, *, halt: bool) -> Point:
        """Log and validate after an update, also when the run halts: a resumed one goes on after it."""

    def over(self, point: Point) -> bool:
        """Whether the rest goes another way."""

    def due(self, point: Point) -> bool:
        """Whether a checkpoint is due."""

    def save(self, point: Point) -> None:
        """Write a checkpoint."""


def run_course(course: Course, point: Point) -> Generator[Progress, None, Point]:
    """Train to the end, or until a signal or another plan; validate and save on the way."""
    try:
        for progress in course.steps(point.step):
            seconds = point.seconds + progress.seconds
            point = replace(point, step=progress.step, tokens=point.tokens + progress.tokens, seconds=seconds)
            halt = course.halted()
            point = course.follow(point, progress, halt=halt)
            over = course.over(point)
            saves = halt or over or course.due(point)
            if saves:
                save(course, point)
            if halt:
                break
            try:
                yield progress
            except GeneratorExit:  # the caller wants no more steps
                if not saves:
                    save(course, point)
                raise
            if over:
                break
    except Diverged as error:
        raise UserError(f"{error}. {last_good(course.out)} {course.advice}") from None
    return point


def save(course: Course, point: Point) -> None:
    try:
        course.save(point)
    except Told:
        raise
    except UserError as error:
        raise UserError(f"{error} {last_good(course.out)}") from None


def last_good(out: Path) -> str:
    steps = state.steps_in(out)
    return (
        f"The last good checkpoint is {state.folder_of(out, steps[-1])}." if steps else "No checkpoint was written."
    )
