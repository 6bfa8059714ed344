"""Draw the learning curves of runs: the bound in training and on validation, by step and by time.

    unmask plot runs/a runs/b --out curves

Writes curves.png and curves.html, a self-contained page, with a table of each run's latest numbers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from unmask.cli.table import write_text
from unmask.errors import UserError
from unmask.views import curves
from unmask.views.page import page


@dataclass(frozen=True)
class Settings:
    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # folders of runs
    out: str = "curves"  # name of the files to write, without an ending
    smooth: float = 0.9  # smoothing of the training curve, from 0 (none) to 1
    log: bool = False  # logarithmic axis of steps


def run(settings: Settings) -> None:
    if not settings.runs:
        raise UserError("which runs? Give their folders: unmask plot runs/mine.")
    if not 0 <= settings.smooth < 1:
        raise UserError(f"smooth must lie in [0, 1); saw {settings.smooth}.")
    read = [curves.read_curve(Path(folder)) for folder in settings.runs]
    figure = curves.curves_figure(read, smooth=settings.smooth, log=settings.log)
    out = Path(settings.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out.with_name(f"{out.name}.png"), dpi=150)
    write_text(out.with_name(f"{out.name}.html"), page("Learning curves", [curves.compared(read, figure)]))
    print(f"{out}.png\n{out}.html")
