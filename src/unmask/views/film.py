"""Film: how a text emerged from masks, as one self-contained HTML file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby

from unmask.sampling.tasks.rows import Event
from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.untrusted import printable

PAGE = "film.html"
UNSURE = -3.0  # log-probability below which a token is shown as doubtful: 1 in 20
MOST = 150  # moments at which a film shows text that was replaced later

Past = tuple[int, str | None]  # the forward pass of a text that was replaced later; None: it was hidden again


@dataclass(frozen=True)
class FilmCell:
    """One token of the finished text, and what stood in its place before."""

    text: str
    call: int  # the forward pass that filled it; 0: it was given
    log_prob: float  # of the token when it was filled; 0 if it was given
    before: tuple[Past, ...] = ()  # in the order of the passes

    def at(self, call: int) -> "FilmCell":
        """What stood here after a forward pass; itself, if it was a mask."""
        past = [one for one in self.before if one[0] <= call < self.call]
        came, text = past[-1] if past else (0, None)
        return self if text is None else FilmCell(text, came, 0.0)


@dataclass(frozen=True)
class Film:
    """A finished text and the forward pass since which each token has stood there."""

    cells: tuple[FilmCell, ...]
    caption: str

    @property
    def calls(self) -> int:
        return max((cell.call for cell in self.cells), default=0)


def film(tokenizer: Tokenizer, tokens: Sequence[int], trace: Iterable[Event], *, caption: str = "") -> Film:
    """The film of a sample or an infilled template."""
    trace = list(trace)
    came = settling(trace)
    past = earlier_texts(tokenizer, tokens, trace, came)
    cells = []
    for position, piece in enumerate(pieces(tokenizer, tokens)):
        event, before = came.get(position), tuple(past.get(position, ()))
        cells.append(
            FilmCell(printable(piece), event.call, event.log_prob, before)
            if event
            else FilmCell(printable(piece), 0, 0.0)
        )
    return Film(tuple(cells), caption)


def settling(trace: Iterable[Event]) -> dict[int, Event]:
    """The event since which each position has had its last token."""
    came: dict[int, Event] = {}
    for event in trace:
        before = came.get(event.position)
        if before is None or before.token != event.token:
            came[event.position] = event
    return came


def earlier_texts(
    tokenizer: Tokenizer, tokens: Sequence[int], trace: Sequence[Event], came: Mapping[int, Event]
) -> dict[int, list[Past]]:
    """The texts that stood at each position before its last one: all of them, or those at `MOST` moments."""
    early = [event for event in trace if event.call < came[event.position].call]
    calls = sorted({event.call for event in early})
    moments = set(calls[:: -(-len(calls) // MOST)]) if calls else set()
    row = [tokenizer.mask if position in came else token for position, token in enumerate(tokens)]
    past: dict[int, list[Past]] = {}
    changed: set[int] = set()
    for call, events in groupby(trace, lambda event: event.call):
        for event in events:
            row[event.position] = event.token
            changed.add(event.position)
        if call not in moments:
            continue
        first, last = max(0, min(changed) - 1), max(changed) + 2
        for position, piece in enumerate(pieces(tokenizer, row[first:last]), first):
            if position in changed and call < came[position].call:
                text = None if row[position] == tokenizer.mask else printable(piece)
                past.setdefault(position, []).append((call, text))
        changed.clear()
    return past


def html(film: Film, *, seconds: float = 6.0) -> str:
    """A page with a play button and a slider, light or dark; it loads no other file."""
    data = {
        "cells": [
            [cell.text, cell.call, round(cell.log_prob, 4), *([cell.before] if cell.before else [])]
            for cell in film.cells
        ],
        "calls": film.calls,
        "caption": film.caption,
        "pause": 1000 * seconds / max(1, film.calls),
        "unsure": UNSURE,
    }
    # Inside a script element only "<" can end the data; escaping it leaves the JSON the same.
    text = json.dumps(data).replace("<", "\\u003c")
    page = files("unmask.views").joinpath(PAGE).read_text(encoding="utf-8")
    return page.replace("/*DATA*/", text)
