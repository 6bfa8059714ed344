"""Trials: a head is trained with several seeds, each a run in a folder of its own; a killed run goes on bit for bit.

runs/mood/
  .lock, settings.toml           as in the folder of a run on text
  data.sha256                    of the data, and of the weights it began with
  seed-1/checkpoints/step-...    while it trains: the model, and training.safetensors to go on from
  seed-1/model/                  the best weights (or the last): see model/head_files.py
  seed-1/metrics.jsonl           the curves
  seed-1/valid.csv, test.csv     predictions
  seed-1/result.json             the scores of this seed; when it is there, the trial is over
  best -> seed-1/model           the seed with the best validation score
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from unmask import settings as toml
from unmask.errors import UserError
from unmask.files import appearing, clear_drafts, write_whole
from unmask.model import checkpoint
from unmask.model.head_files import guide_reading, write_guide
from unmask.model.model import Model
from unmask.model.predictor import Predictor, load_guide, write_predictor
from unmask.model.reading import Trained
from unmask.model.weights import weights_fingerprint
from unmask.text.corpus.benchmarks import submission
from unmask.text.corpus.examples import Example
from unmask.training import metrics, state
from unmask.training.answers import answer, cut_line, encode_examples
from unmask.training.course import run_course
from unmask.training.estimate import duration
from unmask.training.folder import DATA, SETTINGS, UNBEGUN, check_run, differences, hold_folder
from unmask.training.loop import Progress, State, UpdatePlan
from unmask.training.note import NOTE, Point
from unmask.training.results import MODEL, RESULT, names_of, point_to_best
from unmask.training.scores import SCORES, chosen_scores, scores_of
from unmask.training.split import Labelled, Parts, gather_labelled, parts_of
from unmask.training.tuning import Lesson, Tuning, accuracy_when_hidden, begin_tuning, tune
from unmask.untrusted import printable, read_text

FREE = ("out", "seeds", "device", "dtype", "tune.save_every")  # settings that a resumed run may change
LOG_EVERY = 5.0  # seconds between log lines
HIDDEN = (0.5, 0.9)  # shares of hidden tokens at which a guide is scored too

Say = Callable[[str], None]


@contextmanager
def open_trials(asked: Tuning, say: Say, *, resume: bool) -> Iterator[tuple[Tuning, Model, Labelled]]:
    """Hold the run's folder during the block; a new one gets the settings, an old one must have the same.

    The block gets the settings with the length that suits the data, where none was given.
    """
    if not asked.model or not asked.data or not asked.out:
        raise UserError(
            "say what is tuned on which data, and where it goes: unmask classify MODEL DATA --out FOLDER."
        )
    out = Path(asked.out)
    check_trials_folder(asked, out, resume=resume)
    data = gather_labelled(asked.data, asked.columns, asked.split, number=asked.number)
    chosen_scores(asked.metrics, data.answer.kind)
    model = checkpoint.load(asked.model, headed=False)
    # What is wrong is told before anything is written, and not after hours.
    parts_of(data, asked.split, number=asked.seeds - 1, seed=asked.seed)
    fitting = fit_reading(asked, model, data)
    with hold_folder(out, lambda: check_trials_folder(asked, out, resume=resume)):
        keep_origin(out, data, model)
        write_whole(out / SETTINGS, toml.dumps(asked))
        yield fitting, model, data


def fit_reading(asked: Tuning, model: Model, data: Labelled) -> Tuning:
    """The settings with a length that suits the data; those of a guide read the bare text."""
    if asked.guide:
        if model.objective.facts.causal:
            raise UserError("a classifier guides a diffusion model; this one is autoregressive.")
        asked = replace(asked, reading=guide_reading(model))
    trial = Predictor(model, data.answer, asked.reading, trained=Trained(data.pairs))
    lengths = [length for some in data.splits.values() for length in encode_examples(trial, some)[1]]
    return replace(asked, reading=replace(asked.reading, length=trial.length_for(max(lengths))))


def check_trials_folder(asked: Tuning, out: Path, *, resume: bool) -> None:
    """Refuse a folder that holds another run or other files."""

    def changed() -> dict[str, str]:
        return differences(toml.read_toml(out / SETTINGS, Tuning()), asked, FREE)

    check_run(out, changed, "Give another --out for a new run.", resume=resume, unbegun=UNBEGUN)


def keep_origin(out: Path, data: Labelled, model: Model) -> None:
    """Write down what a new run learns from; refuse data or a model that has changed since a run was begun."""
    assert model.folder is not None
    sums = {"data": data.sha256, "model": weights_fingerprint(model.folder)}
    if (out / SETTINGS).is_file():
        if not (out / DATA).is_file():
            raise UserError(
                f"the run in {out} has no {DATA}: an earlier version of unmask began it, and it cannot go on. Its "
                "finished models load as they are; give another --out for a new run."
            )
        before = read_text(out / DATA)
        for name, value in sums.items():
            if f"{value}  {name}\n" not in before:
                raise UserError(
                    f"the {name} changed since the run in {out} was begun. Put it back, or give another --out for a "
                    "new run."
                )
    write_whole(out / DATA, "".join(f"{value}  {name}\n" for name, value in sums.items()))


def trials(
    asked: Tuning, model: Model, data: Labelled, log: "TrialLog", stop: Sequence[int] = ()
) -> Iterator[Progress]:
    """Run every trial that is not over, until a signal; yields after every update."""
    for number in range(asked.seeds):
        trial = Trial(asked, model, data, number, log, stop)
        if not (trial.out / RESULT).is_file():
            yield from run_course(trial, trial.begin())
            if stop:
                return
            trial.finish()
        shutil.rmtree(trial.out / state.FOLDER, ignore_errors=True)
        point_to_best(asked)


@dataclass(frozen=True)
class Trial:
    """One seed: a `Course`."""

    asked: Tuning
    model: Model
    data: Labelled
    number: int
    log: "TrialLog"
    stop: Sequence[int]  # signals that were received
    advice = "Try a smaller --lr."

    @property
    def seed(self) -> int:
        return self.asked.seed + self.number

    @property
    def out(self) -> Path:
        return Path(self.asked.out) / f"seed-{self.seed}"

    @cached_property
    def parts(self) -> Parts:
        return parts_of(self.data, self.asked.split, number=self.number, seed=self.seed)

    @property
    def total(self) -> int:
        return self.asked.tune.updates(len(self.parts.train))

    @property
    def names(self) -> tuple[str, ...]:
        return names_of(self.asked, self.data)

    @cached_property
    def current(self) -> State[Predictor]:
        trained = Trained(self.data.pairs, self.data.columns or self.asked.columns)
        return begin_tuning(self.model, self.data.answer, self.asked, self.plan, trained)

    @property
    def plan(self) -> UpdatePlan:
        return UpdatePlan(self.asked.tune.optim(self.total), self.seed, 0, self.total)

    @cached_property
    def train(self) -> Lesson:
        return self.lesson(self.parts.train, "training")

    @cached_property
    def valid(self) -> Lesson:
        return self.lesson(self.parts.valid, "validation")

    def lesson(self, some: Sequence[Example], what: str) -> Lesson:
        predictor = self.current.learner
        rows, lengths = encode_examples(predictor, some)
        cut = sum(length > row.size for row, length in zip(rows, lengths, strict=True))
        if cut:
            self.log.say(cut_line(predictor, cut, len(some), max(lengths), f"{what} "))
        targets = [predictor.answer.target(str(one.label), one.where) for one in some]
        return Lesson(rows, torch.tensor(targets, dtype=torch.float32))

    def begin(self) -> Point:
        """How far the trial has come; its last checkpoint is restored."""
        self.out.mkdir(parents=True, exist_ok=True)
        for folder in (self.out, self.out / state.FOLDER):
            clear_drafts(folder)
        point = state.recover(self.out, self.log.say, keep=1)
        if point.step:
            state.restore(state.folder_of(self.out, point.step), self.current)
            self.log.say(f"seed {self.seed}: resumed at step {point.step}")
        metrics.forget(self.out, point.step)
        return point

    def steps(self, start: int) -> Iterator[Progress]:
        return tune(self.current, self.train, self.asked, replace(self.plan, start=start))

    def halted(self) -> bool:
        return bool(self.stop)

    def follow(self, point: Point, progress: Progress, *, halt: bool) -> Point:
        line = {"step": point.step, "loss": progress.loss, "norm": progress.norm, "lr": progress.lr}
        metrics.append(self.out, line)
        self.log.step(self, progress)
        if not self.evaluates(point):
            return point
        scores = self.scores(self.current.learner)
        main = scores[self.names[0]]
        better = SCORES[self.names[0]].better(main, point.best)
        if better or self.asked.tune.keep == "last":
            point = replace(point, best=main, best_step=point.step)
        metrics.append(self.out, {"step": point.step, "valid": scores})
        shown = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        self.log.say(f"seed {self.seed}  step {point.step}  validation: {shown}{'  (best)' if better else ''}")
        return point

    def evaluates(self, point: Point) -> bool:
        every = self.asked.tune.eval_every or self.asked.tune.per_epoch(len(self.train.rows))
        return point.step % every == 0 or point.step == self.total

    def over(self, point: Point) -> bool:
        return False

    def due(self, point: Point) -> bool:
        return self.evaluates(point) or point.step % self.asked.tune.save_every == 0

    def scores(self, predictor: Predictor) -> dict[str, float]:
        """The scores on the validation texts; those of a guide also with tokens hidden."""
        truth, batch = self.valid.targets.numpy(), self.asked.tune.batch
        values = predictor.answers(self.valid.rows, batch=batch)
        scores = scores_of(self.names, truth, predictor.answer.decisions(values.numpy()))
        for share in HIDDEN if self.asked.guide else ():
            scores[f"accuracy_{100 * share:.0f}_hidden"] = accuracy_when_hidden(predictor, self.valid, share, batch)
        return scores

    def save(self, point: Point) -> None:
        note = {"seed": self.seed, "step": point.step, "metrics": list(self.names), "data": self.data.name}
        predictor = self.current.learner

        def write(draft: Path) -> None:
            if self.asked.guide:
                write_guide(draft, predictor.stored(), self.model, note)
            else:
                write_predictor(draft, predictor, note)

        state.save_state(self.out, self.current, point, write, keep=1)

    def finish(self) -> None:
        """Keep the best model, write its predictions and scores; then the trial is over."""
        point = state.recover(self.out, self.log.say, keep=1)
        assert point.best_step is not None
        best = state.folder_of(self.out, point.best_step)
        with appearing(self.out / MODEL) as draft:
            for path in sorted(best.iterdir()):
                if path.name not in (state.TENSORS, NOTE):
                    shutil.copy2(path, draft / path.name)
        predictor = self.finished()
        result: dict[str, Any] = {"seed": self.seed, "steps": self.total, "best_step": point.best_step}
        result |= {"seconds": round(point.seconds, 2), "train": {"texts": len(self.parts.train)}}
        for name, some in (("valid", self.parts.valid), ("test", self.parts.test)):
            if some:
                result[name] = self.answered(predictor, name, some)
        if self.asked.guide:
            result["valid"] |= self.scores(predictor)
        for name in ("best", "last"):
            (self.out / name).unlink(missing_ok=True)
        write_whole(self.out / RESULT, json.dumps(result, indent=2) + "\n")

    def finished(self) -> Predictor:
        """The predictor that was kept."""
        if self.asked.guide:
            place, dtype = self.asked.device, self.asked.dtype
            model = checkpoint.load(self.asked.model, device=place, dtype=dtype, headed=False)
            return load_guide(self.out / MODEL, model)
        return Predictor.load(self.out / MODEL, device=self.asked.device, dtype=self.asked.dtype)

    def answered(self, predictor: Predictor, split: str, some: Sequence[Example]) -> dict[str, Any]:
        """Write the predictions of a split; their number and, if all texts have labels, their scores."""
        named, batch = any(one.name for one in some), self.asked.tune.batch
        answers = answer(predictor, some, self.out / f"{split}.csv", named=named, batch=batch)
        result = {"texts": answers.texts, "cut": answers.cut, **answers.scores(self.names)}
        if len(result) == 2 and self.data.benchmark is not None:
            name, content = submission(self.data.benchmark, answers.lines())
            write_whole(self.out / name, content)
        return result


class TrialLog:
    """Lines on standard error: the loss with an estimate of the time that is left, and every validation."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.shown = time.monotonic()
        self.window: list[Progress] = []  # updates since the last line

    def say(self, line: str) -> None:
        if not self.quiet:
            print(printable(line), file=sys.stderr, flush=True)

    def step(self, trial: Trial, progress: Progress) -> None:
        self.window.append(progress)
        if time.monotonic() - self.shown < LOG_EVERY and progress.step != 5:
            return
        window, self.window = self.window, []
        left = (trial.asked.seeds - trial.number) * trial.total - progress.step
        about = duration(left * sum(one.seconds for one in window) / len(window))
        loss = sum(one.loss for one in window) / len(window)
        self.say(f"seed {trial.seed}  step {progress.step} of {trial.total}  loss {loss:.4f}  about {about} left")
        self.shown = time.monotonic()


def parts_line(parts: Parts) -> str:
    test = f", {len(parts.test):,} for test" if parts.test else ""
    return f"{len(parts.train):,} texts for training, {len(parts.valid):,} for validation{test}"
