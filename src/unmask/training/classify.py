"""Fine-tuning for classification as a whole: `unmask.classify`, which `unmask classify` runs too."""

import json
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from unmask.evaluation.record import record
from unmask.files import write_whole
from unmask.model.model import Model
from unmask.processes.signals import stopping
from unmask.settings import described
from unmask.text.corpus.manifest import loss_lines
from unmask.training.estimate import duration
from unmask.training.protocols import usual_settings, with_flat
from unmask.training.results import RESULT, names_of, results_of, summary_of
from unmask.training.split import Labelled, repeat_lines
from unmask.training.trials import Event, Trial, opened, parts_line, trials
from unmask.training.tuning import Tuning
from unmask.untrusted import printable

LOG_EVERY = 5.0  # seconds between log lines


def classify(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    protocol: str = "auto",
    resume: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Fine-tune a model to classify texts as `unmask classify` does; returns what it writes to result.json.

        found = unmask.classify("stories", "reviews.csv", "runs/mood", epochs=3, seeds=3)
        found["valid"]["accuracy"]["mean"]
        unmask.Predictor.load("runs/mood").predict(["What a day!"])[0].label

    The settings are the flags of `unmask classify --help`, with _ for -.
    """
    usual = usual_settings(protocol, str(data))
    given = {"model": str(model), "data": str(data), "out": str(out), **usual, **settings}
    asked = with_flat(Tuning(), given)
    with stopping() as stop:
        found = run_trials(asked, TrialLog(quiet=quiet), resume=resume, stop=stop)
    if found is None:
        raise KeyboardInterrupt
    return found


def run_trials(asked: Tuning, log: "TrialLog", *, resume: bool, stop: list[int]) -> dict[str, Any] | None:
    """A whole run; returns its result, or None if it was stopped."""
    with opened(asked, log.say, resume=resume) as (asked, model, data):
        introduce(asked, model, data, log)
        done = follow(trials(asked, model, data, log.say, stop), log)
        if not done:
            return None
        results = results_of(asked)
        found: dict[str, Any] = {
            "task": data.name,
            "labels": list(data.answer.labels),
            "metric": names_of(asked, data)[0],
        }
        found |= {**summary_of(results), "trials": results}
        whole = record(
            model, seed=asked.seed, settings=described(asked), data={"name": data.name, "sha256": data.sha256}
        )
        write_whole(Path(asked.out) / RESULT, json.dumps({**whole, **found}, indent=2) + "\n")
        return {**whole, **found}


def introduce(asked: Tuning, model: Model, data: Labelled, log: "TrialLog") -> None:
    """Say what is learned from which texts, and what is odd about them."""
    trial = Trial(asked, model, data, 0)
    kind = (
        f"{len(data.answer.labels)} labels: {', '.join(data.answer.labels[:10])}"
        if data.answer.labels
        else "a number"
    )
    log.say(f"{data.name}: {kind}; {parts_line(trial.parts)}")
    published = {} if data.benchmark is None else data.benchmark.published
    for name, count in published.items():
        if (seen := len(data.splits.get(name, ()))) not in (0, count):
            log.say(f"warning: the published {data.name} has {count:,} {name} texts, this one {seen:,}.")
    texts = [text for some in data.splits.values() for one in some for text in (one.text, one.pair or "")]
    for line in (*loss_lines({"replaced": model.text_tokenizer().replaced(texts)}), *repeat_lines(data)):
        log.say(f"warning: {line}.")
    log.say(f"{asked.seeds} x {trial.steps:,} steps of {asked.tune.batch} texts, {model.num_parameters:,} parameters")
    log.trials = asked.seeds


def follow(events: Generator[Event, None, bool], log: "TrialLog") -> bool:
    """Log the events of a run; returns whether it came to its end."""
    while True:
        try:
            log.event(next(events))
        except StopIteration as end:
            return bool(end.value)


class TrialLog:
    """Lines on standard error: the loss with an estimate of the time that is left, and every validation."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet, self.trials = quiet, 1
        self.shown = time.monotonic()
        self.pace: list[float] = []  # seconds of the latest updates
        self.losses: list[float] = []
        self.first = self.seed = -1  # the first seed, and the one that is trained

    def say(self, line: str) -> None:
        if not self.quiet:
            print(printable(line), file=sys.stderr, flush=True)

    def event(self, event: Event) -> None:
        if event.seed != self.seed:
            self.first, self.seed = event.seed if self.first < 0 else self.first, event.seed
            self.losses = []
        if event.valid:
            scores = "  ".join(f"{name} {value:.4f}" for name, value in event.valid.items())
            self.say(
                f"seed {event.seed}  step {event.step}  validation: {scores}{'  (best)' if event.better else ''}"
            )
        if event.update is None:
            return
        self.pace = [*self.pace[-49:], event.update.seconds]
        self.losses.append(event.update.loss)
        if time.monotonic() - self.shown < LOG_EVERY and event.step != 5:
            return
        left = (event.steps - event.step) + (self.first + self.trials - 1 - event.seed) * event.steps
        about = duration(left * sum(self.pace) / len(self.pace))
        loss = sum(self.losses) / len(self.losses)
        self.say(f"seed {event.seed}  step {event.step} of {event.steps}  loss {loss:.4f}  about {about} left")
        self.shown, self.losses = time.monotonic(), []
