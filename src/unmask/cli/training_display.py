"""What a training run shows and writes down: lines or a live bar, metrics.jsonl, TensorBoard by a setting."""

import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from unmask.model.transformer import Architecture
from unmask.training.data import Data
from unmask.training.estimate import duration, estimate, matrix_rate
from unmask.training.loop import Progress, State
from unmask.training.phases import Phase
from unmask.training.settings import Train
from unmask.training.state import Point
from unmask.training.validation import Score


class Display:
    """The voice of a run."""

    def __init__(self, asked: Train, out: Path) -> None:
        self.asked, self.out = asked, out
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.window: list[Progress] = []
        self.rate = 0.0
        self.flops = 0.0

    def __enter__(self) -> "Display":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()

    def say(self, line: str) -> None:
        self.console.print(line, markup=False)

    def start(self, a: Architecture, phase: Phase, point: Point, rows: int) -> None:
        self.rate = self.rate or matrix_rate()
        about = estimate(self.asked, a, rows=rows, rate=self.rate)
        self.flops = about.flops
        for line in about.lines():
            self.say(line)
        for line in about.warnings(self.asked):
            self.say(f"warning: {line}")
        self.say(f"{phase.objective.name}: steps {point.step + 1} to {phase.stop}")

    def resumed(self, point: Point) -> None:
        """Forget what was written after the checkpoint: those steps come again."""
        path = self.out / "metrics.jsonl"
        if path.is_file():
            kept = [line for line in path.read_text().splitlines() if line_step(line) <= point.step]
            draft = path.with_name(".metrics.jsonl")
            draft.write_text("".join(f"{line}\n" for line in kept))
            draft.replace(path)
        self.say(f"resumed at step {point.step}")

    def step(self, progress: Progress) -> None:
        self.window.append(progress)
        if progress.step % self.asked.run.log_every == 0:
            self.flush()

    def flush(self) -> None:
        """Write and show the mean of the steps since the last line."""
        if not self.window:
            return
        n, last = len(self.window), self.window[-1]
        seconds = sum(p.seconds for p in self.window)
        tokens = sum(p.tokens for p in self.window)
        mean = {name: sum(getattr(p, name) for p in self.window) / n for name in ("loss", "bound", "norm")}
        self.record(step=last.step, **mean, lr=last.lr, tokens=tokens, seconds=seconds)
        speed = tokens / seconds
        used = self.flops * n / seconds / self.rate
        left = (self.asked.steps - last.step) * seconds / n
        self.say(
            f"step {last.step}  loss {mean['loss']:.4f}  bound {mean['bound']:.4f}  norm {mean['norm']:.2f}  "
            f"lr {last.lr:.2e}  {speed:,.0f} tokens/s  {used:.0%} of the matrix rate  {duration(left)} left"
        )
        self.window.clear()

    def score(self, step: int, score: Score) -> None:
        self.flush()
        self.record(step=step, valid=score.bound, error=score.error)
        self.say(f"step {step}  validation {score.bound:.4f} ± {score.error:.4f} nats a token")

    def preview(self, current: State, phase: Phase, data: Data) -> None:
        pass

    def record(self, **values: Any) -> None:
        with (self.out / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def line_step(line: str) -> float:
    """The step of a line of metrics; a line that was cut short by a kill has none and is dropped."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
