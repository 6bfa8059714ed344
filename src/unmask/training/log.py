"""The log of a training run: lines on a screen, the curves in metrics.jsonl and in a tracker."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from unmask.model.backbone import Spec
from unmask.model.model import Model
from unmask.sampling.recipe import preview_recipe
from unmask.sampling.tasks.continuation import Sample, generate
from unmask.settings import describe_settings, flat
from unmask.training import metrics
from unmask.training.estimate import duration, estimate, matrix_rate, run_seconds
from unmask.training.loop import Progress
from unmask.training.note import Point
from unmask.training.phases import Phase, phases
from unmask.training.settings import Train
from unmask.training.track import Tracker
from unmask.training.validation import Validation

STEPS = 64  # most steps of a preview's grid
LONG = 15 * 60  # seconds of a run that calls for a word on how to make it shorter


@runtime_checkable
class Screen(Protocol):
    """Where the lines of a log go."""

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def advance(self, step: int, total: int, name: str, numbers: Sequence[str]) -> None:
        """Show the numbers of the latest steps: as a line that stays, or in the place of those before."""

    def tick(self, step: int, total: int, name: str, left: str) -> None:
        """Show that another step is done, and the time that is left, where this can be shown in place."""

    def close(self) -> None:
        """Nothing more is shown."""


class Lines:
    """A screen that is a plain text: standard error, or nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, line: str) -> None:
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def advance(self, step: int, total: int, name: str, numbers: Sequence[str]) -> None:
        self.say("  ".join((f"step {step}", *numbers)))

    def tick(self, step: int, total: int, name: str, left: str) -> None:
        return

    def close(self) -> None:
        return


class Log:
    """What a run says and records; a context manager, so that screen and files are closed.

    Of several processes only rank 0 has one that says or records anything.
    """

    def __init__(self, asked: Train, screen: Screen, *, rank: int = 0, world: int = 1) -> None:
        self.asked, self.screen, self.rank, self.world = asked, screen, rank, world
        self.window: list[Progress] = []
        self.timed = False  # the time was given, and said already
        self.rate = self.flops = 0.0  # FLOP per second of all processes, FLOP per step
        self.phase: Phase | None = None
        run = asked.run
        self.tracker = Tracker("" if rank else run.track or ("tensorboard" if run.tensorboard else ""), self.say)
        self.open = ExitStack()

    @property
    def out(self) -> Path:
        return Path(self.asked.out)

    @property
    def name(self) -> str:
        return "" if self.phase is None else self.phase.objective.name

    @property
    def likelihood(self) -> bool:
        """Whether the objective reports a likelihood or a bound on it."""
        return self.phase is None or self.phase.objective.facts.likelihood

    def __enter__(self) -> "Log":
        self.open.callback(self.screen.close)
        self.open.callback(self.tracker.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open.close()

    def say(self, line: str) -> None:
        if not self.rank:
            self.screen.say(line)

    def start(self, a: Spec, phase: Phase, point: Point, rows: int) -> None:
        """Print the estimated cost of a phase, and warnings; before the first one the time of the whole run."""
        self.phase = phase
        if self.rank:
            return
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
        self.say(f"{self.name}: steps {point.step + 1} to {phase.stop}")
        if phase.stop < self.asked.steps:
            final = self.asked.objective.name
            self.say(f"the numbers of the {self.name} phase do not compare with those of {final}, which follows")
        if not self.likelihood:
            self.say(f"the numbers are a {phase.objective.means}")
        self.tracker.start(self.out, flat(describe_settings(self.asked)), step=point.step)

    def step(self, progress: Progress) -> None:
        self.window.append(progress)
        if not self.rank:
            pace = sum(one.seconds for one in self.window) / len(self.window)
            left = f"{duration((self.asked.steps - progress.step) * pace)} left"
            self.screen.tick(progress.step, self.asked.steps, self.name, left)
        if progress.step % self.asked.run.log_every == 0:
            self.flush()

    def flush(self) -> None:
        """Show and write the mean of the steps since the last flush."""
        steps, self.window = self.window, []
        if not steps or self.rank:
            return
        line = metrics.mean(steps, likelihood=self.likelihood)
        self.record(line)
        pace = line["seconds"] / line["steps"]
        learned = "  ".join(f"{name} {line[name]:.4f}" for name in ("loss", "bound") if name in line)
        rest = f"norm {line['norm']:.2f}  lr {line['lr']:.2e}"
        speed = f"{line['tokens'] / line['seconds']:,.0f} tokens/s{matrix_share(self.flops / pace, self.rate)}"
        left = f"{duration((self.asked.steps - line['step']) * pace)} left"
        self.screen.advance(line["step"], self.asked.steps, self.name, (learned, rest, speed, left))

    def score(self, step: int, score: Validation) -> None:
        self.flush()
        if self.rank:
            return
        self.record({"step": step, "valid": score.bound, "error": score.error})
        unit = "nats per token" if self.likelihood else "nats per predicted token, not a likelihood"
        several = f" ({self.name} phase)" if len(phases(self.asked)) > 1 else ""
        error = f" ± {score.error:.4f}" if score.error else ""  # one row has no error bar
        self.say(f"step {step}  validation{several} {score.bound:.4f}{error} {unit}")

    def preview(self, model: Model, prompt: Sequence[int] = ()) -> None:
        """Show a few samples, drawn as `unmask sample` will draw them; a long grid is shortened."""
        recipe = preview_recipe(model, most=STEPS, seed=self.asked.seed)
        before = f"{' '.join(model.text_tokenizer().decode(prompt).split())} → " if len(prompt) else ""
        for sample in generate(
            model, recipe, n=self.asked.run.preview, prompt=prompt, document=model.layout.documents
        ):
            if isinstance(sample, Sample):
                self.say(f"  | {before}{' '.join(sample.text.split())}")

    def record(self, values: dict[str, Any]) -> None:
        metrics.append(self.out, {**values, "objective": self.name})
        numbers = {name: value for name, value in values.items() if name not in ("step", "steps")}
        self.tracker.log(numbers, values["step"])


def matrix_share(speed: float, rate: float) -> str:
    """The share of the matrix rate that a run reaches; none above 1: the rate was measured on a busy machine."""
    return f"  {speed / rate:.0%} of matrix rate" if speed <= rate else ""
