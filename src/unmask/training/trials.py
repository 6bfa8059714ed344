"""Trials: a network is fine-tuned with several seeds, each in a folder of its own; a killed run goes on bit for bit.

runs/mood/
  .lock, settings.toml           as in the folder of a training run
  begun.json                     sha256 of the data and of the weights it began with
  seed-1/checkpoints/step-...    while it trains: the predictor, and training.safetensors to go on from
  seed-1/model/                  the best weights (or the last): see model/predictor.py
  seed-1/metrics.jsonl           the curves
  seed-1/valid.csv, test.csv     predictions
  seed-1/result.json             the scores of this seed; when it is there, the trial is over
  best -> seed-1/model           the seed with the best validation score
"""

import json
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unmask import settings as toml
from unmask.errors import UserError
from unmask.files import appearing, clear_drafts, write_whole
from unmask.model import checkpoint
from unmask.model.model import Model
from unmask.model.predictor import Predictor, Trained, write_predictor
from unmask.model.weights import weights_fingerprint
from unmask.processes.lock import locked
from unmask.text.corpus.benchmarks import submission
from unmask.text.corpus.examples import Example
from unmask.training import metrics, state
from unmask.training.answers import answer, cut_line, decided, encoded
from unmask.training.folder import LOCK, SETTINGS, check_run, differences
from unmask.training.loop import Progress
from unmask.training.note import NOTE, Point
from unmask.training.results import MODEL, RESULT, names_of, point_to_best
from unmask.training.scores import SCORES, chosen_scores, scored
from unmask.training.split import Labelled, Parts, gathered, parts_of
from unmask.training.tuning import Lesson, Tuner, Tuning, begin_tuning, tune
from unmask.untrusted import read_object

BEGUN = "begun.json"
FREE = ("out", "seeds", "device", "dtype", "tune.save_every")  # settings that a resumed run may change


@dataclass(frozen=True)
class Event:
    """What has happened in a trial."""

    seed: int
    steps: int  # updates of the trial in all
    update: Progress | None = None  # an update was made
    valid: Mapping[str, float] = field(default_factory=dict)  # or the scores on the validation texts were measured
    better: bool = False  # than all before
    step: int = 0


Say = Callable[[str], None]


@contextmanager
def opened(asked: Tuning, say: Say, *, resume: bool) -> Iterator[tuple[Tuning, Model, Labelled]]:
    """Hold the run's folder during the block; a new one gets the settings, an old one must have the same.

    The block gets the settings with the length that suits the data, where none was given.
    """
    if not asked.model or not asked.data or not asked.out:
        raise UserError(
            "say what is tuned on which data, and where it goes: unmask classify MODEL DATA --out FOLDER."
        )
    out = Path(asked.out)
    check_folder(asked, out, resume=resume)
    data = gathered(asked.data, asked.columns, asked.split, number=asked.number)
    chosen_scores(asked.metrics, data.answer.kind)
    model = checkpoint.load(asked.model, headed=False)
    assert model.folder is not None
    begun = {"data": data.sha256, "model": weights_fingerprint(model.folder)}
    # What is wrong is told before anything is written, and not after hours.
    parts_of(data, asked.split, number=asked.seeds - 1, seed=asked.seed)
    trial = Predictor(model, data.answer, asked.reading, trained=Trained(data.pairs))
    lengths = [length for some in data.splits.values() for length in encoded(trial, some)[1]]
    fitting = replace(asked, reading=replace(asked.reading, length=trial.length_for(max(lengths))))
    with locked(out / LOCK):
        check_folder(asked, out, resume=resume)
        clear_drafts(out)
        if (out / BEGUN).is_file():
            check_begun(out, begun)
        write_whole(out / BEGUN, json.dumps(begun) + "\n")
        write_whole(out / SETTINGS, toml.dumps(asked))
        yield fitting, model, data


def check_folder(asked: Tuning, out: Path, *, resume: bool) -> None:
    """Refuse a folder that holds another run or other files."""

    def changed() -> dict[str, str]:
        return differences(toml.read_toml(out / SETTINGS, Tuning()), asked, FREE)

    check_run(out, changed, "Give another --out for a new run.", resume=resume, unbegun=(LOCK, BEGUN))


def check_begun(out: Path, now: Mapping[str, str]) -> None:
    before = read_object(out / BEGUN)
    for name, what in (("data", "the data"), ("model", "the model")):
        if (out / SETTINGS).is_file() and before.get(name) != now[name]:
            raise UserError(
                f"{what} changed since the run in {out} was begun. Put it back, or give another --out for a new run."
            )


def trials(
    asked: Tuning, model: Model, data: Labelled, say: Say, stop: Sequence[int] = ()
) -> Generator[Event, None, bool]:
    """Run every trial that is not over; yields after every update and validation; False: it was stopped."""
    out = Path(asked.out)
    for number in range(asked.seeds):
        seed = asked.seed + number
        if not (out / f"seed-{seed}" / RESULT).is_file():
            trial = Trial(asked, model, data, number)
            yield from trial.run(say, stop)
            if stop:
                return False
            trial.finish(say)
        shutil.rmtree(out / f"seed-{seed}" / state.FOLDER, ignore_errors=True)
        point_to_best(asked)
    return True


class Trial:
    """One seed."""

    def __init__(self, asked: Tuning, model: Model, data: Labelled, number: int) -> None:
        self.asked, self.model, self.data = asked, model, data
        self.seed = asked.seed + number
        self.out = Path(asked.out) / f"seed-{self.seed}"
        self.parts = parts_of(data, asked.split, number=number, seed=self.seed)
        self.steps = asked.tune.updates(len(self.parts.train))
        self.names = names_of(asked, data)

    def begin(self) -> Tuner:
        asked = self.asked
        return begin_tuning(
            self.model,
            self.data.answer,
            asked.reading,
            asked.tune,
            seed=self.seed,
            steps=self.steps,
            device=asked.device,
            dtype=asked.dtype,
            trained=Trained(self.data.pairs, self.data.columns or asked.columns),
        )

    def run(self, say: Say, stop: Sequence[int]) -> Iterator[Event]:
        """Train to the end, or until a signal; evaluate and save on the way."""
        how = self.asked.tune
        tuner = self.begin()
        lesson = lesson_of(tuner.predictor, self.parts.train, "training", say)
        valid = lesson_of(tuner.predictor, self.parts.valid, "validation", say)
        self.out.mkdir(parents=True, exist_ok=True)
        for folder in (self.out, self.out / state.FOLDER):
            clear_drafts(folder)
        point = state.recovered(self.out, say, keep=1)
        if point.step:
            state.read_into(state.folder_of(self.out, point.step), tuner)
            say(f"seed {self.seed}: resumed at step {point.step}")
        metrics.forget(self.out, point.step)
        every = how.eval_every or how.per_epoch(len(lesson.rows))
        for update in tune(tuner, lesson, how, seed=self.seed, start=point.step, stop=self.steps):
            point = replace(point, step=update.step, seconds=point.seconds + update.seconds)
            metrics.append(self.out, {"step": update.step, "loss": update.loss, "norm": update.norm, "lr": update.lr})
            yield Event(self.seed, self.steps, update, step=update.step)
            due = update.step % every == 0 or update.step == self.steps
            if due:  # also when it is stopped: a resumed run goes on after this step
                found = self.score(tuner.predictor, valid)
                better = SCORES[self.names[0]].better(found[self.names[0]], point.best)
                if better or how.keep == "last":
                    point = replace(point, best=found[self.names[0]], best_step=update.step)
                metrics.append(self.out, {"step": update.step, "valid": found})
                yield Event(self.seed, self.steps, valid=found, better=better, step=update.step)
            if due or stop or update.step % how.save_every == 0:
                self.save(tuner, point)
            if stop:
                return

    def score(self, predictor: Predictor, lesson: Lesson) -> dict[str, float]:
        values = predictor.answers(lesson.rows, batch=self.asked.tune.batch)
        return scored(self.names, lesson.targets.numpy(), decided(predictor, values.numpy()))

    def save(self, tuner: Tuner, point: Point) -> None:
        """Write a checkpoint to go on from; the last one and the best one are kept."""
        note = {"seed": self.seed, "step": point.step, "metrics": list(self.names), "data": self.data.name}
        with appearing(state.folder_of(self.out, point.step)) as draft:
            write_predictor(draft, tuner.predictor, note)
            state.write_files(draft, tuner, point)
        state.tidy(self.out, point, keep=1)

    def finish(self, say: Say) -> None:
        """Keep the best model, write its predictions and scores; then the trial is over."""
        point = state.recovered(self.out, say, keep=1)
        assert point.best_step is not None
        best = state.folder_of(self.out, point.best_step)
        with appearing(self.out / MODEL) as draft:
            for path in sorted(best.iterdir()):
                if path.name not in (state.TENSORS, NOTE):
                    shutil.copy2(path, draft / path.name)
        predictor = Predictor.load(self.out / MODEL, device=self.asked.device, dtype=self.asked.dtype)
        found: dict[str, Any] = {"seed": self.seed, "steps": self.steps, "best_step": point.best_step}
        found |= {"seconds": round(point.seconds, 2), "train": {"texts": len(self.parts.train)}}
        for name, some in (("valid", self.parts.valid), ("test", self.parts.test)):
            if some:
                found[name] = self.answered(predictor, name, some)
        for name in ("best", "last"):
            (self.out / name).unlink(missing_ok=True)
        write_whole(self.out / RESULT, json.dumps(found, indent=2) + "\n")

    def answered(self, predictor: Predictor, split: str, some: Sequence[Example]) -> dict[str, Any]:
        """Write the predictions of a split; their number and, if all texts have labels, their scores."""
        named, batch = any(one.name for one in some), self.asked.tune.batch
        answers = answer(predictor, some, self.out / f"{split}.csv", named=named, batch=batch)
        found = {"texts": answers.texts, "cut": answers.cut, **answers.scores(self.names)}
        if len(found) == 2 and self.data.benchmark is not None:
            name, content = submission(self.data.benchmark, answers.lines())
            write_whole(self.out / name, content)
        return found


def lesson_of(predictor: Predictor, some: Sequence[Example], what: str, say: Say) -> Lesson:
    rows, lengths = encoded(predictor, some)
    cut = sum(length > row.size for row, length in zip(rows, lengths, strict=True))
    if cut:
        say(cut_line(predictor, cut, len(some), max(lengths), f"{what} "))
    targets = [predictor.answer.target(str(one.label), one.where) for one in some]
    return Lesson(rows, torch.tensor(targets, dtype=torch.float32))


def parts_line(parts: Parts) -> str:
    test = f", {len(parts.test):,} for test" if parts.test else ""
    return f"{len(parts.train):,} texts for training, {len(parts.valid):,} for validation{test}"
