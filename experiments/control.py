"""Control on real tasks: where masked diffusion beats left-to-right generation, and where it does not.

    python experiments/control.py                                       4x4 Sudoku on puzzles made here, some minutes
    python experiments/control.py sudoku4 --data benchmarks/sudoku      tested on the usual files
    python experiments/control.py sudoku9 --data benchmarks/sudoku
    python experiments/control.py infill --model runs/stories --ar runs/stories-ar --texts test.txt --judge gpt2
    python experiments/control.py keywords --model runs/stories --ar runs/stories-ar --judge gpt2
    python experiments/control.py remask --model runs/stories --judge gpt2
    python experiments/control.py all ...                               all of them
    python experiments/control.py view --records docs/records/sudoku9.json --out runs/sudoku9   a page and a picture

Tables go to standard output, progress to standard error, a record to --json FILE. With --out
FOLDER each table is also written as those of `unmask study` are: Markdown, HTML with a picture, PNG and JSON.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from studies import mending, middle, promises, sudoku
from studies.pupils import Sudoku
from studies.results import Table, as_study
from studies.stories import judges, writer
from unmask.cli.study import write_table
from unmask.errors import UserError
from unmask.evaluation.record import record

Study = Literal["sudoku4", "sudoku9", "infill", "keywords", "remask", "all", "view"]
STUDIES = ("sudoku4", "sudoku9", "infill", "keywords", "remask")
NINE = Sudoku(box=3, steps=1000, blocks=4, lr=3e-3, test=200, constrained=50)


@dataclass(frozen=True)
class Settings:
    what: Annotated[Study, tyro.conf.Positional] = "sudoku4"
    model: str = ""
    """A masked diffusion run that writes stories (infill, keywords, remask)."""
    ar: str = ""
    """An autoregressive run with the same tokenizer (infill, keywords)."""
    judge: tuple[str, ...] = ()
    """Who judges the stories: autoregressive runs, .gguf files, folders or hub names; none: the --ar run."""
    texts: str = ""
    """A text file of stories that neither model has seen, with <|endoftext|> between them (infill)."""
    data: str = ""
    """A folder with the Sudoku test files 4x4_test_sudoku.csv and sudoku_test.csv.gz; without it puzzles are made."""
    keep: Path | None = None
    """Where Sudoku networks are kept; those that are there are not trained again."""
    steps: int | None = None
    """Training steps of each Sudoku network; None: 3000 for 4x4, 1000 for 9x9."""
    n: int | None = None
    """Puzzles, stories or samples, at most; None: each study's own number."""
    budgets: tuple[int, ...] = mending.BUDGETS
    """Numbers of steps in the study of remasking."""
    lengths: bool = True
    """Let diffusion choose the length of a sentence too: many more passes (infill)."""
    seed: int = 1
    markdown: bool = False
    """Print the tables as Markdown."""
    json: Path | None = None
    """Write a record: tables, settings, models, machine."""
    out: Path | None = None
    """A folder for the tables in the form of `unmask study`, each in a folder of its own if there are several."""
    records: tuple[Path, ...] = ()
    """Records that --json wrote, for `view`."""


def of_sudoku(settings: Settings, asked: Sudoku) -> Table:
    asked = replace(asked, seed=settings.seed)
    if settings.steps is not None:
        asked = replace(asked, steps=settings.steps)
    if settings.n is not None:
        asked = replace(asked, test=settings.n, constrained=min(settings.n, asked.constrained))
    return sudoku.study(asked, folder=settings.data, keep=settings.keep)


def of_stories(settings: Settings, wanted: Sequence[str]) -> Iterator[Table]:
    """The studies that need trained models: these and the judges are loaded once, and before anything is drawn."""
    kinds = ("mdlm", "any-order") if set(wanted) == {"infill"} else ("mdlm",)
    mdlm = writer(settings.model, "model", *kinds)
    ar = writer(settings.ar, "ar", "ar") if {"infill", "keywords"} & set(wanted) else None
    told = dict(judges(settings.judge or ((settings.ar,) if settings.ar else ())))
    if ar is not None and "infill" in wanted:
        yield middle.study(
            mdlm, ar, told, settings.texts, n=settings.n or 100, seed=settings.seed, lengths=settings.lengths
        )
    if ar is not None and "keywords" in wanted:
        yield promises.study(mdlm, ar, told, n=settings.n or 48, seed=settings.seed)
    if "remask" in wanted:
        yield mending.study(mdlm, told, n=settings.n or 32, seed=settings.seed, budgets=settings.budgets)


def tables(settings: Settings) -> Iterator[Table]:
    wanted = STUDIES if settings.what == "all" else (settings.what,)
    if "sudoku4" in wanted:
        yield of_sudoku(settings, Sudoku())
    if "sudoku9" in wanted:
        yield of_sudoku(settings, NINE)
    if {"infill", "keywords", "remask"} & set(wanted):
        yield from of_stories(settings, wanted)


def drawn(kept: Sequence[dict[str, Any]], out: Path) -> None:
    """Tables as `unmask study` writes them."""
    for number, one in enumerate(kept):
        folder = out if len(kept) == 1 else out / str(number + 1)
        folder.mkdir(parents=True, exist_ok=True)
        write_table(as_study(one), folder)
        print(f"written: {folder}/table.md, .html, .png, .json", file=sys.stderr)


def main(settings: Settings) -> None:
    if settings.what == "view":
        if settings.out is None or not settings.records:
            raise UserError("view needs --records FILES that --json wrote and --out FOLDER.")
        drawn([one for path in settings.records for one in json.loads(path.read_text())["tables"]], settings.out)
        return
    found = []
    for table in tables(settings):
        print(table.markdown() if settings.markdown else table.text(), end="\n\n", flush=True)
        found.append(table.json())
    if settings.out is not None:
        drawn(found, settings.out)
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
