"""Results of a study: shares and means with their error bars, and tables of them as text, Markdown and JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from unmask.evaluation.likelihood.error_bars import Z
from unmask.evaluation.quality.perplexity import average, error_of_ratio


@dataclass(frozen=True)
class Share:
    """How many of some trials went well, with Wilson's 95 % interval."""

    good: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's: the shares p that lie within 1.96 of their own standard errors √(p(1 − p)/n) of good/n."""
        p, n = self.good / self.of, self.of
        middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.good / self.of:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


@dataclass(frozen=True)
class Mean:
    """A number and its standard error."""

    value: float
    error: float
    digits: int = 2

    def __str__(self) -> str:
        return f"{self.value:.{self.digits}f} ± {self.error:.{self.digits}f}"


def mean(values: Sequence[float], *, digits: int = 2) -> Mean:
    return Mean(*average(np.array(values, float)), digits)


def perplexity(nats: Sequence[float], tokens: Sequence[int], *, digits: int = 2) -> Mean:
    """exp of the nats a token, and its standard error over texts."""
    paid, counted = np.array(nats, float), np.array(tokens, float)
    value = math.exp(paid.sum() / counted.sum())
    return Mean(value, value * error_of_ratio(paid, counted), digits)


def against(ours: Sequence[float], theirs: Sequence[float], *, digits: int = 3) -> Mean:
    """The mean of ours less theirs, text by text."""
    return mean([a - b for a, b in zip(ours, theirs, strict=True)], digits=digits)


Cell = str | int | Share | Mean | None


@dataclass(frozen=True)
class Table:
    """What a study found; `notes` say what one must know to read it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)  # for the record: settings, data, times

    @property
    def words(self) -> list[list[str]]:
        return [list(self.head), *[["-" if cell is None else str(cell) for cell in row] for row in self.rows]]

    def text(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.words, strict=True)]
        lines = ["  ".join(word.ljust(w) for word, w in zip(row, widths, strict=True)).rstrip() for row in self.words]
        return "\n".join([self.title, "", *lines, "", *self.notes])

    def markdown(self) -> str:
        lines = ["| " + " | ".join(row) + " |" for row in self.words]
        lines.insert(1, "|---" * len(self.head) + "|")
        return "\n".join([f"### {self.title}", "", *lines, "", *self.notes])

    def json(self) -> dict[str, Any]:
        """The rows as objects: shares with their counts, means with their errors."""
        rows = [dict(zip(self.head, map(_plain, row), strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": list(self.notes), **self.about}


def _plain(cell: Cell) -> Any:
    if isinstance(cell, Share):
        return {**asdict(cell), "interval": cell.interval}
    if isinstance(cell, Mean):
        return {"value": cell.value, "error": cell.error if math.isfinite(cell.error) else None}
    return cell


def as_study(kept: dict[str, Any]) -> dict[str, Any]:
    """A table of `Table.json`, perhaps from a record, in the form of `unmask study`: for its page and picture."""
    rows = kept["rows"]
    names = list(rows[0])
    first = next(i for i, name in enumerate(names) if any(isinstance(row[name], dict) for row in rows))
    labels, numbers = names[:first], [name for name in names[first:] if any(_number(row[name]) for row in rows)]
    cells = [[_number(row[name]) or (None, None) for name in numbers] for row in rows]
    return {
        "title": kept["title"],
        "about": " ".join(kept["notes"]),
        "source": "",
        "scale": "",
        "threads": 1,
        "budget": "equal steps",
        "compare": None,
        "fits": [],
        "picture": {"kind": "bars", "y": numbers[0]},
        "columns": [
            {"name": name, "unit": "%" if _is_share(rows, name) else "", "digits": 1 if _is_share(rows, name) else 2}
            for name in numbers
        ],
        "rows": [
            {
                "name": ", ".join(_label(name, row[name]) for name in labels if row[name] is not None),
                "group": "",
                "differs": "",
                "changes": {},
                "failure": "",
                "complete": True,
                "difference": None,
                "trained": None,
                "train_seconds": None,
                "curve": [],
                "cells": [
                    {"value": value, "error": error, "values": [] if value is None else [value], "published": None}
                    for value, error in own
                ],
            }
            for row, own in zip(rows, cells, strict=True)
        ],
    }


def _label(name: str, value: Any) -> str:
    return str(value) if isinstance(value, str) and value not in ("on", "off") else f"{name} {value}"


def _is_share(rows: Sequence[dict[str, Any]], name: str) -> bool:
    return any(isinstance(row[name], dict) and "good" in row[name] for row in rows)


def _number(cell: Any) -> tuple[float, float | None] | None:
    """A cell's number and its error; of a share the percentage, and half of Wilson's interval over 1.96."""
    if isinstance(cell, dict) and "good" in cell:
        low, high = cell["interval"]
        return 100 * cell["good"] / cell["of"], 100 * (high - low) / (2 * Z)
    if isinstance(cell, dict):
        return cell["value"], cell["error"]
    try:
        return float(cell), None
    except (TypeError, ValueError):
        return None
