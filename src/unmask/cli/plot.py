"""Draw the learning curves of runs: unmask plot runs/a runs/b --out curves

Writes curves.png and curves.html, a page that needs nothing else: the bound in training and on validation by step
and by time, and a table of where each run stands.
"""

import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from unmask.errors import UserError
from unmask.training import metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # tell apart for all eyes


@dataclass(frozen=True)
class Settings:
    """Which runs, and where to."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # folders of runs
    out: str = "curves"  # the pictures' name, without an ending
    smooth: float = 0.9  # how much of the past stays in the training curve, from 0 (none) to 1
    log: bool = False  # a logarithmic axis of steps


@dataclass(frozen=True)
class Curve:
    """One run: its training lines and its validations."""

    name: str
    steps: list[dict[str, Any]]
    valid: list[dict[str, Any]]

    @property
    def hours(self) -> list[float]:
        """The time spent in steps up to each training line."""
        total, found = 0.0, []
        for line in self.steps:
            total += line["seconds"]
            found.append(total / 3600)
        return found


def run(settings: Settings) -> None:
    if not settings.runs:
        raise UserError("which runs? Give their folders: unmask plot runs/mine.")
    if not 0 <= settings.smooth < 1:
        raise UserError(f"smooth must lie in [0, 1); saw {settings.smooth}.")
    curves = [curve(Path(folder)) for folder in settings.runs]
    figure = drawn(curves, settings)
    out = Path(settings.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out.with_name(f"{out.name}.png"), dpi=150)
    out.with_name(f"{out.name}.html").write_text(page(curves, figure), encoding="utf-8")
    print(f"{out}.png\n{out}.html")


def curve(folder: Path) -> Curve:
    lines = metrics.read(folder)
    steps, valid = ([line for line in lines if key in line] for key in ("bound", "valid"))
    found = Curve(str(folder), steps, valid)
    if not found.steps:
        raise UserError(f"{folder} has no step to draw yet.")
    return found


def smoothed(values: list[float], keep: float) -> list[float]:
    """A running mean that forgets, without the pull towards the first value that such means have."""
    total = weight = 0.0
    found = []
    for value in values:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        found.append(total / weight)
    return found


def drawn(curves: list[Curve], settings: Settings) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("drawing needs matplotlib: pip install 'unmask[train]'.") from None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    for i, each in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        bounds = smoothed([line["bound"] for line in each.steps], settings.smooth)
        steps = [line["step"] for line in each.steps]
        for axes, places in ((by_step, steps), (by_time, each.hours)):
            axes.plot(places, bounds, color=colour, lw=1, alpha=0.6, label=each.name)
            at = [nearest(steps, places, line["step"]) for line in each.valid]
            values, errors = [line["valid"] for line in each.valid], [line["error"] for line in each.valid]
            axes.errorbar(at, values, yerr=errors, color=colour, fmt="o-", ms=3, lw=1.2, capsize=2)
    by_step.set(xlabel="step", ylabel="bound, nats a token", xscale="log" if settings.log else "linear")
    by_time.set(xlabel="hours in steps")
    by_step.legend(frameon=False, fontsize=8, title="line: training, dots: validation", title_fontsize=8)
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def nearest(steps: list[int], places: list[Any], step: int) -> Any:
    """Where the training line that belongs to a step is drawn."""
    return places[min(range(len(steps)), key=lambda i: abs(steps[i] - step))]


def page(curves: list[Curve], figure: "Figure") -> str:
    """One page with the picture in it and a table below."""
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    svg = picture.getvalue()
    rows = "\n".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row(each))}</tr>" for each in curves)
    heads = "".join(f"<th>{name}</th>" for name in ("run", "step", "bound", "validation", "best", "hours"))
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Learning curves</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }}
svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse }}
th, td {{ padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ddd }}
th:first-child, td:first-child {{ text-align: left }}
</style>
<h1>Learning curves</h1>
{svg[svg.index("<svg") :]}
<table><tr>{heads}</tr>
{rows}
</table>
</html>
"""


def row(each: Curve) -> list[str]:
    """Where a run stands."""
    last = each.steps[-1]
    cells = [each.name, str(last["step"]), f"{last['bound']:.4f}"]
    if each.valid:
        best = min(each.valid, key=lambda line: line["valid"])
        now = each.valid[-1]
        cells += [f"{now['valid']:.4f} ± {now['error']:.4f}", f"{best['valid']:.4f} at step {best['step']}"]
    else:
        cells += ["", ""]
    return [*cells, f"{each.hours[-1]:.2f}"]
