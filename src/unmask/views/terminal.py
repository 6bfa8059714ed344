"""Text emerging from masks in a terminal: new tokens bright, doubtful ones yellow, masks dim."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic, sleep
from typing import TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from unmask.sampling.tasks.rows import Event, Moment, note_events
from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.untrusted import printable
from unmask.views.film import UNSURE

Finished = TypeVar("Finished")

NEW, RECENT, DOUBTFUL, MASK, GIVEN = "bold black on bright_cyan", "bright_cyan", "yellow", "bright_black", "bold"
PICTURES = 12  # per second, at most


def watch(
    events: Iterable[Moment | Finished],
    tokenizer: Tokenizer,
    console: Console,
    *,
    pace: float = 0.0,
    start: int = 0,
) -> Iterator[Finished]:
    """Show the moments among the events and yield the rest; `pace` is a pause after every pass, in seconds.

    The first `start` tokens of a row are not shown.
    """
    traces: list[list[Event]] = []
    shown, call = 0.0, 0
    with Live(console=console, transient=True, auto_refresh=False) as live:
        for event in events:
            if not isinstance(event, Moment):
                yield event
                continue
            if event.step.call <= call or len(traces) != len(event.step.canvas.tokens):  # other rows
                traces = [[] for _ in event.step.canvas.tokens]
            call = event.step.call
            note_events(traces, event.step)
            traces = [
                list({one.position: one for one in trace}.values()) for trace in traces
            ]  # replaced ones are many
            if monotonic() - shown >= 1 / PICTURES:
                live.update(picture(event, traces, tokenizer, most=console.height, start=start), refresh=True)
                shown = monotonic()
            sleep(pace)


def picture(
    moment: Moment, traces: Sequence[Sequence[Event]], tokenizer: Tokenizer, *, most: int, start: int = 0
) -> Group:
    """As many rows as fit on the screen, and the progress."""
    step = moment.step
    hidden = int(step.canvas.hidden.sum())
    rows = [
        paint_row(tokenizer, tokens, {event.position: event for event in trace}, call=step.call, start=start)
        for tokens, trace in zip(step.canvas.tokens[:most].tolist(), traces, strict=False)
    ]
    line = Text(f"pass {step.call}, {hidden:,} masks left", style=MASK)
    return Group(line, *(part for row in rows for part in (row, Text(""))))


def paint_row(
    tokenizer: Tokenizer, tokens: Sequence[int], came: Mapping[int, Event], *, call: int, start: int = 0
) -> Text:
    """A row in colours, from a position on; `came` has the event of each position that was drawn."""
    text = Text()
    for position, (token, piece) in enumerate(zip(tokens, pieces(tokenizer, tokens), strict=True)):
        if position < start:
            continue
        event = came.get(position)
        if token == tokenizer.mask:
            style = MASK
        elif event is None:
            style = GIVEN
        elif event.call == call:
            style = NEW
        elif event.call > call - 4:
            style = RECENT
        else:
            style = DOUBTFUL if event.log_prob < UNSURE else ""
        text.append(printable(piece), style=style)
    return text
