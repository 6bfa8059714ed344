"""A whole training run, from text to checkpoints, as a generator: that of `unmask train` and of `unmask.train`."""

import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from unmask import settings as toml
from unmask import storage
from unmask.errors import how_many
from unmask.processes.device import compute_type, device_of
from unmask.processes.mirror import Mirror, hold_mirror, mirror_of
from unmask.processes.signals import halt_signal, stopping
from unmask.processes.team import Team, join_team, said_once
from unmask.processes.threads import computing_with, watched_threads
from unmask.training import state
from unmask.training.course import run_course
from unmask.training.data import Data, data_folder, open_data, with_chat_template, with_dialect, within_positions
from unmask.training.estimate import Deadline
from unmask.training.fit import Order, fit_settings, threads_of
from unmask.training.folder import claim_folder, stored_settings
from unmask.training.log import Lines, Log, Screen
from unmask.training.loop import Progress, begin
from unmask.training.note import Point, read_point
from unmask.training.origin import denoiser_of, inherited_settings, origin_of
from unmask.training.phases import phases
from unmask.training.settings import Train, settle_training
from unmask.training.stage import Stage, TrainingJob


def train(
    data: str | Path = "",
    out: str | Path = "",
    *,
    config: str | Path = "",
    resume: bool = False,
    minutes: float = 0.0,
    quiet: bool = False,
    **settings: Any,
) -> Iterator[Progress]:
    """Train a model as `unmask train` does: the same data, phases, validation, checkpoints and log.

        for progress in unmask.train("my_texts/", "runs/mine", steps=200, model={"width": 128}):
            print(progress.step, progress.bound)
        model = unmask.load("runs/mine")

    Nothing happens before the first step is asked for. Leaving the loop early saves a checkpoint, as Ctrl-C does, and
    `resume=True` continues. The settings are those of `unmask train --help`; a group of them is a dictionary.
    config   a TOML file of settings, which the arguments override
    minutes  choose network, batch and steps for about this time
    quiet    print no log
    """
    base = toml.read_toml(config, Train()) if config else Train()
    if resume and out and (stored := stored_settings(str(out))) is not None:
        base = toml.read_toml(stored, Train())
    given = {name: str(value) for name, value in (("data", data), ("out", out)) if str(value)} | settings
    names = {*toml.flat(given), *(toml.names_in(config) if config else ())}
    order = Order(toml.merge_settings(base, given), resume=resume, minutes=minutes, given=names)
    return interruptible(order, Lines(quiet=quiet))


def interruptible(order: Order, screen: Screen) -> Iterator[Progress]:
    """A run that a signal ends with an exception, after it has saved."""
    number = yield from run(order, screen)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number:
        raise SystemExit(128 + number)


def run(order: Order, screen: Screen) -> Generator[Progress, None, int]:
    """Yields after every update; returns the signal that stopped the run after it was saved, or 0."""
    asked = settle_training(order.train)
    place, mirror = asked.out, mirror_of(asked.out)
    asked = replace(asked, out=storage.without_scheme(place) if mirror is None else str(mirror.folder))
    if "steps" in order.given:  # as many as that, whatever the clock says
        asked = replace(asked, run=replace(asked.run, minutes=0.0))
    asked = with_chat_template(within_positions(with_dialect(asked), order.given))
    compute_type(asked.run.dtype, device_of(asked.run.device))  # an error now rather than after the data is read
    with (
        join_team(asked.run.parallel, seconds=asked.run.patience, device_name=asked.run.device) as team,
        said_once(team),
        lead_mirror(mirror, team),
        Log(asked, screen, rank=team.rank, world=team.world) as log,
        claim_folder(
            asked, log.say, resume=order.resume, team=team, fit=partial(fit_settings, order, team, log.say)
        ) as asked,
    ):
        log.asked, log.timed = asked, bool(order.minutes)
        if mirror is not None:
            team.lead(mirror.own)
        if asked.dialect != order.train.dialect:
            log.say(f"{asked.init} is read as an autoregressive model of the dialect {asked.dialect} (--dialect)")
        if remark := asked.objective.remark(asked.text.length):
            log.say(remark)
        data = open_data(asked, data_folder(asked, Path(asked.out), log.say))
        for line in data.lines(asked.steps):
            log.say(line)
        if data.warning:
            log.say(f"warning: {data.warning}")
        with stopping() as stop, computing_with(threads_of(asked)), watched_threads(log.say):
            point = yield from uploading(run_plans(asked, data, log, stop, team), mirror, team)
            number = halt_signal(stop, team)
        if number:
            log.say(f"stopped at step {point.step}: continue with `unmask train --out {place} --resume`")
        else:
            where = f"{place.rstrip('/')}/{'best' if point.best_step else 'last'}"
            log.say(f"done: {how_many(point.step, 'step')}; the model is in {where}")
    return number


@contextmanager
def lead_mirror(mirror: Mirror | None, team: Team) -> Iterator[None]:
    """Rank 0 holds the folder of a run that is kept elsewhere, as it is there."""
    with ExitStack() as stack:
        if mirror is not None:
            team.lead(lambda: stack.enter_context(hold_mirror(mirror)))
        yield


def uploading(
    steps: Generator[Progress, None, Point], mirror: Mirror | None, team: Team
) -> Generator[Progress, None, Point]:
    """The steps; after each checkpoint, what is new is uploaded before the next step."""
    before = "" if mirror is None else mirror.last()
    with closing(steps):
        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                return end.value
            if mirror is not None and (last := mirror.last()) != before:
                team.lead(mirror.push)
                before = last
            yield progress


def run_plans(asked: Train, data: Data, log: Log, stop: list[int], team: Team) -> Generator[Progress, None, Point]:
    """Run what is left; a late run goes on from a checkpoint with fewer steps, as if it were resumed there."""
    point = last_point(asked)
    limit = 60 * asked.run.minutes if team.world == 1 else 0
    deadline = Deadline(limit, spent=point.seconds)
    planned = with_plan(asked, point)
    if point.step and point.step < planned.steps:
        log.say(f"resumed at step {point.step}")
    while True:
        log.asked = planned
        point = yield from run_phases(TrainingJob(planned, data, log, stop, team, deadline))
        if with_plan(asked, point) == planned or halt_signal(stop, team):
            return point
        planned = with_plan(asked, point)


def last_point(asked: Train) -> Point:
    """The progress in a run's last checkpoint."""
    done = state.steps_in(Path(asked.out))
    return read_point(state.folder_of(Path(asked.out), done[-1])) if done else Point()


def with_plan(asked: Train, point: Point) -> Train:
    """The settings with the steps that a run limited by time has come to."""
    return replace(asked, steps=point.plan) if asked.run.minutes and point.plan else asked


def run_phases(job: TrainingJob) -> Generator[Progress, None, Point]:
    asked, team = job.asked, job.team
    done = state.steps_in(job.out)
    folder = state.folder_of(job.out, done[-1]) if done else None
    point = last_point(asked) if asked.run.minutes else replace(last_point(asked), plan=None)
    for phase in phases(asked, step=point.step, began=point.began):
        if point.step >= phase.stop or job.halted:
            continue
        origin = origin_of(asked, folder)
        current = begin(denoiser_of(asked, phase, job.data, origin, team), asked, team)
        if phase.start < point.step and folder is not None:
            point = replace(state.restore(folder, current, team), plan=point.plan)
        else:  # bounds of two objectives are not comparable
            point = replace(point, best=None, error=None, best_step=None, began=phase.start)
        job.log.start(current.network.spec, phase, point, job.data.rows)
        settings = toml.describe_settings(asked) | inherited_settings(origin, phase.objective)
        point = yield from run_course(Stage(job, phase, current, settings), point)
        folder = state.folder_of(job.out, point.step)
        if point.plan not in (None, asked.steps):
            break
    return point
