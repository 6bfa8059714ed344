"""Film: how a text emerged from masks, as one self-contained HTML file."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from unmask.sampling.tasks.rows import Event
from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.tokenizer import Tokenizer

PAGE = "film.html"
UNSURE = -3.0  # log-probability below which a token is shown as doubtful: 1 in 20


@dataclass(frozen=True)
class Cell:
    """One token of the finished text."""

    text: str
    call: int  # the forward pass that filled it; 0: it was given
    log_prob: float  # of the token when it was filled; 0 if it was given


@dataclass(frozen=True)
class Film:
    """A finished text and the forward pass since which each token has stood there; tokens never move."""

    cells: tuple[Cell, ...]
    caption: str

    @property
    def calls(self) -> int:
        return max((cell.call for cell in self.cells), default=0)


def film(tokenizer: Tokenizer, tokens: Sequence[int], trace: Iterable[Event], *, caption: str = "") -> Film:
    """The film of a sample or an infilled template."""
    came = settling(trace)
    cells = []
    for position, piece in enumerate(pieces(tokenizer, tokens)):
        event = came.get(position)
        shown = "".join(letter if letter in "\n\t" or letter.isprintable() else "·" for letter in piece)
        cells.append(Cell(shown, event.call, event.log_prob) if event else Cell(shown, 0, 0.0))
    return Film(tuple(cells), caption)


def settling(trace: Iterable[Event]) -> dict[int, Event]:
    """The event since which each position has had its last token."""
    came: dict[int, Event] = {}
    for event in trace:
        before = came.get(event.position)
        if before is None or before.token != event.token:
            came[event.position] = event
    return came


def html(film: Film, *, seconds: float = 6.0) -> str:
    """A page with a play button and a slider, light or dark; it loads no other file."""
    data = {
        "cells": [[cell.text, cell.call, round(cell.log_prob, 4)] for cell in film.cells],
        "calls": film.calls,
        "caption": film.caption,
        "pause": 1000 * seconds / max(1, film.calls),
        "unsure": UNSURE,
    }
    # Inside a script element only "<" can end the data; escaping it leaves the JSON the same.
    text = json.dumps(data).replace("<", "\\u003c")
    page = files("unmask.views").joinpath(PAGE).read_text(encoding="utf-8")
    return page.replace("/*DATA*/", text)
