"""The settings of a new run that follow from its data: the packing, and for --minutes the sizes."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from unmask.processes.team import Team
from unmask.training.data import document_lengths, has_regions, opened, starting_spec
from unmask.training.estimate import duration, matrix_rate, step_rate
from unmask.training.settings import Train
from unmask.training.sizes import ASIDE, packed_for, seconds_per_step, sized, tuning_encoder

PACKED = {
    "rows": "the documents are short: one per row of {length} tokens, with its end (--text.pack stream joins them)",
    "stream": "documents are joined and cut into rows of {length} tokens (--text.pack rows: one per row)",
    "windows": "rows of {length} tokens are cut within the intervals (--text.pack stream joins them)",
    "padded": "the documents are short: one per row of {length} tokens (--text.pack wrap joins them)",
    "wrap": "documents are joined and cut into rows of {length} tokens (--text.pack padded: one per row)",
}


@dataclass(frozen=True)
class Order:
    """A run as it was asked for."""

    train: Train
    resume: bool = False  # go on with the run in its folder, if there is one
    minutes: float = 0.0  # choose network, batch and steps for about this time; 0: those of the settings
    given: Collection[str] = ()  # names of the settings that were given, and so are not chosen


def fitted(order: Order, team: Team, say: Callable[[str], None], asked: Train, folder: Path) -> Train:
    """The settings of a new run, with the packing that suits its data and the sizes for --minutes."""
    chosen = asked.text.pack == "auto"
    spec = starting_spec(asked)
    lengths, regions = document_lengths(folder), has_regions(folder)
    asked = packed_for(asked, lengths, given=order.given, framed=spec.framed, regions=regions)
    if spec.framed and asked.init:
        asked = tuning_encoder(asked, given=order.given)
    if chosen:
        say(PACKED[asked.text.pack].format(length=asked.text.length))
    return for_minutes(order, team, say, asked, folder) if order.minutes else asked


def for_minutes(order: Order, team: Team, say: Callable[[str], None], asked: Train, folder: Path) -> Train:
    """The settings with the sizes that take about the time that was given."""
    data, init = opened(asked, folder), starting_spec(asked) if asked.init else None

    def sizes(asked: Train, rate: float, given: Collection[str]) -> Train:
        rows, vocab = data.rows, data.tokenizer.size
        return sized(
            asked, minutes=order.minutes, rows=rows, vocab=vocab, rate=rate, given=given, init=init, world=team.world
        )

    guess = sizes(asked, matrix_rate() * team.world, order.given)
    if team.world > 1:
        say(size_line(guess, order.minutes))
        return guess
    # A few steps of that network tell the speed of this machine better than products of matrices.
    batches = opened(guess, folder).batches.at
    rate = step_rate(guess, batches, rows=data.rows, vocab=data.tokenizer.size, mask=data.tokenizer.mask, init=init)
    found = sizes(guess, rate, {*order.given, "model.width", "optim.batch"})
    seconds = found.steps * seconds_per_step(found, rows=data.rows, vocab=data.tokenizer.size, rate=rate, init=init)
    say(size_line(found, seconds / 60 / (1 - ASIDE)))
    return found


def size_line(asked: Train, minutes: float) -> str:
    """What --minutes chose."""
    shape = " ".join(
        f"{name} {getattr(asked.model, name)}" for name in ("width", "blocks") if hasattr(asked.model, name)
    )
    return (
        f"chosen for about {duration(60 * minutes)}: {shape}, {asked.steps} steps of {asked.optim.batch} rows. "
        "The number of steps stays, also if the machine turns out slower."
    )
