"""The voice of the processes that are not rank 0: they say nothing and write nothing."""

from types import TracebackType

from unmask.model.checkpoint import Model
from unmask.model.transformer import Architecture
from unmask.training.loop import Progress
from unmask.training.phases import Phase
from unmask.training.state import Point
from unmask.training.validation import Score


class Silence:
    """All that a `Display` can be told, unheard."""

    def __enter__(self) -> "Silence":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def start(self, a: Architecture, phase: Phase, point: Point, rows: int) -> None:
        pass

    def resumed(self, point: Point) -> None:
        pass

    def step(self, progress: Progress) -> None:
        pass

    def flush(self) -> None:
        pass

    def score(self, step: int, score: Score) -> None:
        pass

    def preview(self, model: Model) -> None:
        pass
