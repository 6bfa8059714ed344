"""The display of a training run: a live bar on a terminal, plain lines elsewhere; the metrics go to files too."""

import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from unmask.errors import UserError, install
from unmask.model.backbone import Spec
from unmask.model.model import Model
from unmask.sampling.recipe import preview_recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.training import metrics
from unmask.training.estimate import duration, estimate, matrix_rate, run_seconds
from unmask.training.loop import Progress
from unmask.training.phases import Phase
from unmask.training.settings import Train
from unmask.training.state import Point
from unmask.training.validation import Validation

STEPS = 64  # most steps of a preview's grid


LONG = 15 * 60  # seconds of a run that calls for a word on how to make it shorter


class Display:
    """The output of a run; a context manager, so that the bar is closed."""

    def __init__(self, asked: Train, out: Path, *, world: int = 1, quiet: bool = False) -> None:
        self.asked, self.out, self.world = asked, out, world
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True, quiet=quiet)
        self.bar = Bar(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), console=self.console
        )
        self.live = self.console.is_terminal and not quiet
        self.task = self.bar.add_task("", total=asked.steps, now="")
        self.window: list[Progress] = []
        self.timed = False  # the time was given, and said already
        self.rate = self.flops = 0.0  # FLOP per second of all processes, FLOP per step
        self.likelihood = True  # whether the objective reports a likelihood or a bound on it
        self.board: Any = None
        self.open = ExitStack()

    def __enter__(self) -> "Display":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open.close()

    def say(self, line: str) -> None:
        self.console.print(line, markup=False)

    def start(self, a: Spec, phase: Phase, point: Point, rows: int) -> None:
        """Print the estimated cost of a phase, and warnings; before the first one the time of the whole run."""
        first, self.rate = not self.rate, self.rate or matrix_rate() * self.world
        about = estimate(self.asked, a, phase, rows=rows, rate=self.rate)
        self.flops = about.flops
        for line in about.lines():
            self.say(line)
        if first and not self.timed:
            seconds = run_seconds(self.asked, a, rows=rows, rate=self.rate, step=point.step)
            shorter = " --minutes 10 chooses a smaller run." if seconds > LONG and not point.step else ""
            self.say(f"about {duration(seconds)} in all.{shorter}")
        for line in about.warnings(self.asked):
            self.say(f"warning: {line}")
        self.say(f"{phase.objective.name}: steps {point.step + 1} to {phase.stop}")
        self.likelihood = phase.objective.facts.likelihood
        if not self.likelihood:
            self.say(f"the numbers are a {phase.objective.means}")
        name, total = phase.objective.name, self.asked.steps
        self.bar.update(self.task, description=name, completed=point.step, total=total)
        if self.live and not self.bar.live.is_started:
            self.open.enter_context(self.bar)
        if self.asked.run.tensorboard and self.board is None:
            self.board = tensorboard(self.out, point.step)
            self.open.callback(self.board.close)

    def resumed(self, point: Point) -> None:
        self.say(f"resumed at step {point.step}")

    def step(self, progress: Progress) -> None:
        self.window.append(progress)
        if progress.step % self.asked.run.log_every == 0:
            self.flush()

    def flush(self) -> None:
        """Show and write the mean of the steps since the last flush."""
        if not self.window:
            return
        line = metrics.mean(self.window, likelihood=self.likelihood)
        self.window.clear()
        self.record(line)
        pace = line["seconds"] / line["steps"]
        learned = "  ".join(f"{name} {line[name]:.4f}" for name in ("loss", "bound") if name in line)
        speed = f"{line['tokens'] / line['seconds']:,.0f} tokens/s{matrix_share(self.flops / pace, self.rate)}"
        left = f"{duration((self.asked.steps - line['step']) * pace)} left"
        if self.live:
            self.bar.update(self.task, completed=line["step"], now=f"{learned}  {speed}  {left}")
        else:
            rest = f"norm {line['norm']:.2f}  lr {line['lr']:.2e}"
            self.say(f"step {line['step']}  {learned}  {rest}  {speed}  {left}")

    def score(self, step: int, score: Validation) -> None:
        self.flush()
        self.record({"step": step, "valid": score.bound, "error": score.error})
        unit = "nats per token" if self.likelihood else "nats per predicted token, not a likelihood"
        self.say(f"step {step}  validation {score.bound:.4f} ± {score.error:.4f} {unit}")

    def preview(self, model: Model) -> None:
        """Show a few samples, drawn as `unmask sample` will draw them; a long grid is shortened."""
        if not self.asked.run.preview:
            return
        recipe = preview_recipe(model, most=STEPS, seed=self.asked.seed)
        for sample in generate(model, recipe, n=self.asked.run.preview, document=model.writes_documents):
            if isinstance(sample, Sample):
                self.say(f"  | {' '.join(sample.text.split())}")

    def record(self, values: dict[str, Any]) -> None:
        metrics.append(self.out, values)
        for name, value in values.items():
            if self.board is not None and name not in ("step", "steps"):
                self.board.add_scalar(name, value, values["step"])


def tensorboard(out: Path, step: int) -> Any:
    """A writer of event files; events after `step` are purged."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(f"run.tensorboard needs the package: {install('train')}") from None
    return SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)


def matrix_share(speed: float, rate: float) -> str:
    """The share of the matrix rate that a run reaches; none above 1: the rate was measured on a busy machine."""
    return f"  {speed / rate:.0%} of matrix rate" if speed <= rate else ""


class Silence:
    """A `Display` that shows nothing, for all ranks but 0."""

    asked: Train
    timed: bool

    def __enter__(self) -> "Silence":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def start(self, a: Spec, phase: Phase, point: Point, rows: int) -> None:
        pass

    def resumed(self, point: Point) -> None:
        pass

    def step(self, progress: Progress) -> None:
        pass

    def flush(self) -> None:
        pass

    def score(self, step: int, score: Validation) -> None:
        pass

    def preview(self, model: Model) -> None:
        pass
