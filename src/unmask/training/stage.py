"""A phase of a run on text: its steps, validation, previews and checkpoints, as a `Course`."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from unmask.model import checkpoint
from unmask.model.denoiser import Denoiser
from unmask.model.model import Model
from unmask.processes.signals import halt_signal
from unmask.processes.team import Team
from unmask.settings import describe_settings
from unmask.training import ema, state
from unmask.training.data import Data
from unmask.training.estimate import Deadline, PreviewClock, duration, preview_seconds
from unmask.training.log import Log
from unmask.training.loop import Progress, State, train
from unmask.training.note import Point
from unmask.training.phases import Phase
from unmask.training.settings import Train
from unmask.training.validation import Validation, validate


@dataclass(frozen=True)
class TrainingJob:
    """A run that is going on."""

    asked: Train
    data: Data
    log: Log
    stop: list[int]  # signals that were received
    team: Team
    deadline: Deadline

    @property
    def out(self) -> Path:
        return Path(self.asked.out)

    @property
    def halted(self) -> int:
        return halt_signal(self.stop, self.team)


@dataclass(frozen=True)
class Stage:
    """A phase of a job, with what it trains."""

    job: TrainingJob
    phase: Phase
    current: State[Denoiser]
    settings: Mapping[str, Any]  # written with every checkpoint
    advice = "A smaller optim.lr or a longer optim.warmup helps."

    @property
    def out(self) -> Path:
        return self.job.out

    @property
    def mask(self) -> int:
        return self.job.data.tokenizer.mask

    @cached_property
    def clock(self) -> PreviewClock:
        run = self.job.asked.run
        return PreviewClock(60 * run.preview_minutes if run.preview and self.job.team.world == 1 else 0)

    def steps(self, start: int) -> Iterator[Progress]:
        job = self.job
        batch = partial(job.data.batches.at, rank=job.team.rank, world=job.team.world)
        return train(self.current, self.phase, job.asked, batch, mask=self.mask, start=start, team=job.team)

    def halted(self) -> bool:
        return bool(self.job.halted)

    def follow(self, point: Point, progress: Progress, *, halt: bool) -> Point:
        """Log a step; validate and preview where they are due; the steps that are left time for."""
        job, run = self.job, self.job.asked.run
        job.log.step(progress)
        evaluate = point.step % run.eval_every == 0 or point.step == self.phase.stop
        score = validation_of(self) if evaluate else None
        if score is not None:
            job.log.score(point.step, score)
            if point.best is None or score.bound < point.best:
                point = replace(point, best=score.bound, error=score.error, best_step=point.step)
        if halt:
            return point
        if run.preview and (self.clock.due() or (evaluate and self.has_time_to_show(progress))):
            with self.clock:
                preview(self)
        return on_time(job, point)

    def has_time_to_show(self, progress: Progress) -> bool:
        """Whether a run of a given time has enough of it for a preview."""
        length = self.current.learner.backbone.spec.length
        guess = preview_seconds(self.job.asked.run.preview, length, progress.seconds / progress.tokens)
        return not self.job.deadline.seconds or self.clock.affords(guess)

    def over(self, point: Point) -> bool:
        return point.plan is not None and point.plan != self.job.asked.steps

    def due(self, point: Point) -> bool:
        return point.step in (self.phase.stop, point.best_step) or point.step % self.job.asked.run.save_every == 0

    def save(self, point: Point) -> None:
        job, current = self.job, self.current
        job.log.flush()
        exports = state.export_model(current, job.team)
        about = {
            "objective": describe_settings(self.phase.objective),
            "step": point.step,
            "ema": bool(current.shadow),
        }

        def write(draft: Path) -> None:
            assert exports is not None
            note = {**about, "settings": self.settings}
            if exports.adapter is not None:
                checkpoint.write_adapted(
                    draft, exports, note, base=job.asked.init, mask=self.mask, tokenizer=job.data.tokenizer
                )
                return
            checkpoint.write(draft, exports, note, mask=self.mask, tokenizer=job.data.tokenizer)

        state.save_state(job.out, current, point, write, keep=job.asked.run.keep, team=job.team)


def on_time(job: TrainingJob, point: Point) -> Point:
    """The progress with the steps that are left time for, said where these are fewer than planned."""
    steps = job.deadline.steps(point.step, job.asked.steps)
    if steps == job.asked.steps:
        return point
    limit = duration(job.deadline.seconds)
    job.log.say(f"the machine is slower than in the trial: {steps} steps, not {job.asked.steps}, fit into {limit}")
    return replace(point, plan=steps)


def use_average(current: State[Denoiser]) -> AbstractContextManager[None]:
    current.learner.eval()
    return ema.in_place(current.shadow, [p for _, p in current.learner.learned()] if current.shadow else [])


def preview(stage: Stage) -> None:
    """Show samples of the averaged network, which rank 0 gathers for this."""
    job, current = stage.job, stage.current
    exports = state.export_model(current, job.team)

    def show() -> None:
        assert exports is not None
        # A sharded network may be too large for one device.
        exports.to("cpu" if state.state_is_sharded(current) else job.team.device)
        network, parts = exports.backbone.freeze(), dict(exports.parts.items())
        objective, tokenizer = stage.phase.objective, job.data.tokenizer
        job.log.preview(
            Model(network, stage.mask, objective, tokenizer, stage.settings, parts=parts, state=exports.state),
            job.data.prompt,
        )

    job.team.lead(show)


def validation_of(stage: Stage) -> Validation | None:
    """The bound on the validation split with the averaged weights, if there is such a split."""
    job, current = stage.job, stage.current
    batches = job.data.valid(job.asked.run.eval_rows)
    if not batches:
        return None
    with use_average(current):
        return validate(
            current.learner, batches, stage.phase.objective, mask=stage.mask, seed=job.asked.seed, team=job.team
        )
