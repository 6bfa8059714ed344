"""The settings of a new run that follow from data and machine: packing, threads; for --minutes type and sizes too."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from unmask.processes.device import small_floats
from unmask.processes.team import Team
from unmask.processes.threads import GAIN, chosen_outside, computing_with, fewest_as_fast, seconds_of
from unmask.text.layout import Marks, training_layout
from unmask.training.data import document_lengths, has_pairs, has_regions, open_data, starting_spec
from unmask.training.estimate import duration, estimate, matrix_rate, step_rate, trial_steps
from unmask.training.phases import continue_spec, phases, spec_of
from unmask.training.settings import Train
from unmask.training.sizes import ASIDE, optimizer_for, packed_for, seconds_per_step, size_run

TRIED = 1.0  # seconds of a step, by a rough estimate, up to which the number of threads and the type are tried
ROUNDS = 3  # of a trial of types


@dataclass(frozen=True)
class Order:
    """A run as it was asked for."""

    train: Train
    resume: bool = False  # go on with the run in its folder, if there is one
    minutes: float = 0.0  # choose network, batch and steps for about this time; 0: those of the settings
    given: Collection[str] = ()  # names of the settings that were given, and so are not chosen


def fit_settings(order: Order, team: Team, say: Callable[[str], None], asked: Train, folder: Path) -> Train:
    """The settings of a new run: the packing that suits its data, the threads, and the sizes for --minutes."""
    chosen = asked.text.chooses_pack
    spec = starting_spec(asked)
    lengths, regions, pairs = document_lengths(folder), has_regions(folder), has_pairs(folder)
    asked = packed_for(asked, lengths, given=order.given, framed=spec.framed, regions=regions, pairs=pairs)
    if asked.init:
        asked = optimizer_for(asked, spec, given=order.given)
    if chosen:
        layout = training_layout(asked.text.pack, Marks(0, 0), framed=spec.framed)
        say(layout.chosen.format(length=asked.text.length))
    if order.minutes:
        return for_minutes(order, team, say, asked, folder)
    return with_threads(asked, folder, team, say)


def for_minutes(order: Order, team: Team, say: Callable[[str], None], asked: Train, folder: Path) -> Train:
    """The settings with the sizes that take about the time that was given."""
    data, init = open_data(asked, folder), starting_spec(asked) if asked.init else None

    def sizes(asked: Train, rate: float, given: Collection[str]) -> Train:
        rows, vocab = data.rows, data.tokenizer.size
        return size_run(
            asked, minutes=order.minutes, rows=rows, vocab=vocab, rate=rate, given=given, init=init, world=team.world
        )

    guess = sizes(asked, matrix_rate() * team.world, order.given)
    guess = with_threads(guess, folder, team, say)
    if team.world > 1:
        say(size_line(guess, order.minutes))
        return guess
    guess = with_type(guess, folder, team, say)
    # A few steps of that network tell the speed of this machine better than products of matrices.
    batches = open_data(guess, folder).batches.at
    with computing_with(threads_of(guess)):
        rate = step_rate(
            guess,
            batches,
            rows=data.rows,
            vocab=data.tokenizer.size,
            mask=data.tokenizer.mask,
            init=init,
            seconds=60 * order.minutes * ASIDE,
        )
    chosen = sizes(guess, rate, {*order.given, "model.width", "optim.batch"})
    chosen = replace(chosen, run=replace(chosen.run, minutes=order.minutes))
    seconds = chosen.steps * seconds_per_step(chosen, rows=data.rows, vocab=data.tokenizer.size, rate=rate, init=init)
    say(size_line(chosen, seconds / 60 / (1 - ASIDE)))
    return chosen


def threads_of(asked: Train) -> int:
    """The threads of a run; one that was begun before they were stored had as many as there are."""
    return torch.get_num_threads() if asked.run.threads == "auto" else asked.run.threads


def with_threads(asked: Train, folder: Path, team: Team, say: Callable[[str], None]) -> Train:
    """The settings with a number of threads: that which was asked for, or the best of a trial."""
    threads = threads_of(asked)
    free = asked.run.threads == "auto" and not chosen_outside() and team.device.type == "cpu"
    if free and threads > 1:
        most, threads = threads, threads_by_trial(asked, folder, threads)
        if threads < most:
            more = "thread, which is" if threads == 1 else "threads, which are"
            say(f"computes with {threads} {more} as fast as {most} here (--threads N for another number)")
    return replace(asked, run=replace(asked.run, threads=threads))


def threads_by_trial(asked: Train, folder: Path, most: int) -> int:
    """The fewest threads that are as fast as any; steps that take long are not tried, and get all."""
    step = trial(asked, folder)
    return fewest_as_fast(step, most) if step else most


def trial(asked: Train, folder: Path) -> Callable[[], object] | None:
    """A training step, to be timed; None: it takes too long to be tried."""
    data, many = open_data(asked, folder), replace(asked, steps=1000)
    phase, vocab = phases(many)[-1], data.tokenizer.size
    spec = continue_spec(starting_spec(many), many, phase) if asked.init else spec_of(many, phase, vocab=vocab)
    if estimate(many, spec, phase, rows=data.rows, rate=matrix_rate()).seconds > TRIED * phase.steps:
        return None
    steps = trial_steps(many, data.batches.at, phase, spec, mask=data.tokenizer.mask)
    return lambda: next(steps)


def with_type(asked: Train, folder: Path, team: Team, say: Callable[[str], None]) -> Train:
    """The settings with bfloat16 if none was asked for, this CPU has it, and a trial finds it faster."""
    if asked.run.dtype != "auto" or team.device.type != "cpu" or small_floats("bfloat16"):
        return asked
    small = replace(asked, run=replace(asked.run, dtype="bfloat16"))
    with computing_with(threads_of(asked)):
        share = share_of_time([trial(small, folder), trial(asked, folder)])
    if share * GAIN > 1:
        return asked
    say(f"computes products in bfloat16: a step takes {share:.2f} of float32's time here (or --dtype float32)")
    return small


def share_of_time(steps: Sequence[Callable[[], object] | None]) -> float:
    """The time of the first kind of step, in units of the second's: the best of several in turns; 1 if not tried."""
    kinds = [step for step in steps if step]
    if len(kinds) < 2:
        return 1.0
    rounds = [[seconds_of(step) for step in kinds] for _ in range(ROUNDS + 1)][1:]  # the first time is slower
    ours, theirs = map(min, zip(*rounds, strict=True))
    return ours / theirs


def size_line(asked: Train, minutes: float) -> str:
    named = [name for name in ("width", "blocks") if hasattr(asked.model, name)]
    shape = asked.init or " ".join(f"{name} {getattr(asked.model, name)}" for name in named)
    return (
        f"chosen for about {duration(60 * minutes)}: {shape}, {asked.steps} steps of {asked.optim.batch} rows. "
        "If the machine turns out slower, there will be fewer steps."
    )
