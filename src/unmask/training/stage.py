"""A phase of a run: trained to its end, or until a signal; evaluated, previewed and saved on the way."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.model.model import Model
from unmask.processes.signals import halted
from unmask.processes.team import Team, Told
from unmask.training import ema, state
from unmask.training.data import Data
from unmask.training.estimate import Deadline, PreviewClock, duration
from unmask.training.log import Log
from unmask.training.loop import Diverged, Progress, State, train
from unmask.training.note import Point
from unmask.training.phases import Phase
from unmask.training.settings import Train
from unmask.training.validation import Validation, validate


@dataclass(frozen=True)
class Job:
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
        return halted(self.stop, self.team)


@dataclass(frozen=True)
class Stage:
    """A phase of a job, with what it trains."""

    job: Job
    phase: Phase
    current: State
    settings: Mapping[str, Any]  # written with every checkpoint

    @property
    def mask(self) -> int:
        return self.job.data.tokenizer.mask


def run_phase(stage: Stage, point: Point) -> Generator[Progress, None, tuple[Point, Path]]:
    """Train to the end of a phase, or until a signal or another plan; evaluate and save on the way."""
    job, phase, run = stage.job, stage.phase, stage.job.asked.run
    folder = state.folder_of(job.out, point.step)
    clock = PreviewClock(60 * run.preview_minutes if run.preview and job.team.world == 1 else 0)
    batch = partial(job.data.batches.at, rank=job.team.rank, world=job.team.world)
    steps = train(stage.current, phase, job.asked, batch, mask=stage.mask, start=point.step, team=job.team)
    try:
        for progress in steps:
            point = moved(point, progress)
            job.log.step(progress)
            halt = bool(job.halted)
            if not halt:
                point = looked_at(stage, point, clock)
                point = on_time(job, point)
            late = point.plan is not None and point.plan != job.asked.steps
            due = late or point.step in (phase.stop, point.best_step) or point.step % run.save_every == 0
            if halt or due:
                folder = save(stage, point)
            if halt:
                break
            try:
                yield progress
            except GeneratorExit:  # the caller wants no more steps
                if folder != state.folder_of(job.out, point.step):
                    save(stage, point)
                raise
            if late:
                break
    except Diverged as error:
        advice = "A smaller optim.lr or a longer optim.warmup helps."
        raise UserError(f"{error}. {last_good(job.out)} {advice}") from None
    return point, folder


def on_time(job: Job, point: Point) -> Point:
    """The progress with the steps that are left time for, said where these are fewer than planned."""
    steps = job.deadline.steps(point.step, job.asked.steps)
    if steps == job.asked.steps:
        return point
    limit = duration(job.deadline.seconds)
    job.log.say(f"the machine is slower than in the trial: {steps} steps, not {job.asked.steps}, fit into {limit}")
    return replace(point, plan=steps)


def looked_at(stage: Stage, point: Point, clock: PreviewClock) -> Point:
    """Validate and preview after a step, where they are due; returns the progress with the best bound so far."""
    job, run = stage.job, stage.job.asked.run
    evaluate = point.step % run.eval_every == 0 or point.step == stage.phase.stop
    score = scored(stage) if evaluate else None
    if score is not None:
        job.log.score(point.step, score)
        if point.best is None or score.bound < point.best:
            point = replace(point, best=score.bound, best_step=point.step)
    if run.preview and (evaluate or clock.due()):
        with clock:
            preview(stage)
    return point


def save(stage: Stage, point: Point) -> Path:
    job = stage.job
    job.log.flush()
    try:
        return state.save_state(
            job.out,
            stage.current,
            point,
            mask=stage.mask,
            objective=stage.phase.objective,
            tokenizer=job.data.tokenizer,
            settings=stage.settings,
            keep=job.asked.run.keep,
            team=job.team,
        )
    except Told:
        raise
    except UserError as error:
        raise UserError(f"{error} {last_good(job.out)}") from None


def moved(point: Point, progress: Progress) -> Point:
    return replace(
        point,
        step=progress.step,
        tokens=point.tokens + progress.tokens,
        seconds=point.seconds + progress.seconds,
    )


def last_good(out: Path) -> str:
    steps = state.steps_in(out)
    return (
        f"The last good checkpoint is {state.folder_of(out, steps[-1])}." if steps else "No checkpoint was written."
    )


def averaged(current: State) -> AbstractContextManager[None]:
    """Use the averaged weights, if there are any."""
    current.denoiser.eval()
    return ema.in_place(current.shadow, list(current.denoiser.parameters()) if current.shadow else [])


def preview(stage: Stage) -> None:
    """Show samples of the averaged network, which rank 0 gathers for this."""
    job, current = stage.job, stage.current
    exports = state.exported(current, job.team)

    def show() -> None:
        assert exports is not None
        # A sharded network may be too large for one device.
        exports.to("cpu" if state.state_is_sharded(current) else job.team.device)
        network, parts = exports.backbone.freeze(), dict(exports.parts.items())
        objective, tokenizer = stage.phase.objective, job.data.tokenizer
        job.log.preview(
            Model(network, stage.mask, objective, tokenizer, stage.settings, parts=parts, state=exports.state)
        )

    job.team.lead(show)


def scored(stage: Stage) -> Validation | None:
    """The bound on the validation split with the averaged weights, if there is such a split."""
    job, current = stage.job, stage.current
    batches = job.data.valid(job.asked.run.eval_rows)
    if not batches:
        return None
    with averaged(current):
        return validate(
            current.denoiser, batches, stage.phase.objective, mask=stage.mask, seed=job.asked.seed, team=job.team
        )
