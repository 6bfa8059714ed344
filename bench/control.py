"""Control on real tasks: where masked diffusion beats left-to-right generation, and where it does not.

    python bench/control.py                                       4x4 Sudoku on puzzles made here, some minutes
    python bench/control.py sudoku4 --data benchmarks/sudoku      tested on the usual files
    python bench/control.py sudoku9 --data benchmarks/sudoku
    python bench/control.py infill --model runs/stories --ar runs/stories-ar --texts stories/test.txt --judge gpt2
    python bench/control.py keywords --model runs/stories --ar runs/stories-ar --judge gpt2
    python bench/control.py remask --model runs/stories --judge gpt2
    python bench/control.py all ...                               all of them

Tables go to standard output, progress to standard error, a record to --json FILE.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from studies import sudoku
from studies.results import Table
from unmask.errors import UserError
from unmask.evaluation.record import record

NINE = sudoku.Sudoku(box=3, steps=5000, batch=16, width=64, blocks=4, constrained=50)


@dataclass(frozen=True)
class Settings:
    what: Annotated[Literal["sudoku4", "sudoku9", "infill", "keywords", "remask", "all"], tyro.conf.Positional] = "sudoku4"
    data: str = ""
    """A folder with the Sudoku test files 4x4_test_sudoku.csv and sudoku_test.csv.gz; without it puzzles are made."""
    keep: Path | None = None
    """Where Sudoku networks are kept; those that are there are not trained again."""
    steps: int | None = None
    """Training steps of each Sudoku network; None: 3000 for 4x4, 5000 for 9x9."""
    n: int | None = None
    """Puzzles, stories or samples, at most; None: each study's own number."""
    seed: int = 1
    markdown: bool = False
    """Print the tables as Markdown."""
    json: Path | None = None
    """Write a record: tables, settings, models, machine."""


def of_sudoku(settings: Settings, asked: sudoku.Sudoku) -> Table:
    asked = replace(asked, seed=settings.seed)
    if settings.steps is not None:
        asked = replace(asked, steps=settings.steps)
    if settings.n is not None:
        asked = replace(asked, test=settings.n, constrained=min(settings.n, asked.constrained))
    return sudoku.study(asked, folder=settings.data, keep=settings.keep)


def tables(settings: Settings) -> Iterator[Table]:
    everything = settings.what == "all"
    if everything or settings.what == "sudoku4":
        yield of_sudoku(settings, sudoku.Sudoku())
    if everything or settings.what == "sudoku9":
        yield of_sudoku(settings, NINE)


def main(settings: Settings) -> None:
    found = []
    for table in tables(settings):
        print(table.markdown() if settings.markdown else table.text(), end="\n\n", flush=True)
        found.append(table.json())
    if settings.json is not None:
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
        kept = record(None, seed=settings.seed, settings=plain, data={}, tables=found)
        settings.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, description=__doc__))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
