"""Learning curves: the bound of runs in training and on validation, as a figure and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError
from unmask.training import metrics
from unmask.views.figure import COLOURS, legend, panels, require_matplotlib, svg, without_formulas
from unmask.views.page import Part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = ("run", "step", "bound", "validation", "best", "hours")


@dataclass(frozen=True)
class Curve:
    """A run: the lines of its metrics for training and for validation."""

    name: str
    steps: list[dict[str, Any]]
    valid: list[dict[str, Any]]

    @property
    def measure(self) -> str:
        """What its numbers are: `bound`, or `loss` if its objective has no likelihood."""
        return "bound" if "bound" in self.steps[-1] else "loss"

    @property
    def values(self) -> list[float]:
        """The bound, or the loss, of each training line."""
        return [line.get("bound", line["loss"]) for line in self.steps]

    @property
    def hours(self) -> list[float]:
        """The hours spent in steps up to each training line."""
        total, hours = 0.0, []
        for line in self.steps:
            total += line["seconds"]
            hours.append(total / 3600)
        return hours

    @property
    def phases(self) -> list["Curve"]:
        """The parts of the curve with one objective each: the numbers of two objectives do not compare."""
        names = dict.fromkeys(line.get("objective") for line in (*self.steps, *self.valid))
        return [
            Curve(self.name, *([line for line in some if line.get("objective") == name] for some in self.lines))
            for name in names
        ]

    @property
    def lines(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return self.steps, self.valid


def read_curve(folder: Path) -> Curve:
    lines = metrics.read_metrics(folder)
    steps, valid = ([line for line in lines if key in line] for key in ("loss", "valid"))
    if not steps:
        raise UserError(f"{folder} has no step to draw yet.")
    for some, names in ((steps, ("loss", "seconds")), (valid, ("valid", "error"))):
        for line in some:
            if wrong := [name for name in names if not isinstance(line.get(name), int | float)]:
                raise UserError(
                    f"{folder / metrics.FILE} cannot be drawn: at step {line['step']} {wrong[0]} is "
                    f"{line.get(wrong[0])!r:.40}, not a number. Is it the folder of a training run?"
                )
    return Curve(str(folder), steps, valid)


def smooth_curve(values: Sequence[float], keep: float) -> list[float]:
    """An exponential moving average, corrected for its start (as Adam corrects its moments)."""
    total = weight = 0.0
    means = []
    for value in values:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        means.append(total / weight)
    return means


def curves_figure(curves: Sequence[Curve], *, smooth: float = 0.9, log: bool = False) -> "Figure":
    """The bound by step and by time: lines in training, dots with error bars on validation."""
    require_matplotlib("train")
    drawn, (by_step, by_time) = panels(2, width=11)
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        steps = [line["step"] for line in curve.steps]
        for axes, places in ((by_step, steps), (by_time, curve.hours)):
            at = {line["step"]: nearest_step(steps, places, line["step"]) for line in (*curve.steps, *curve.valid)}
            first, *others = curve.phases
            draw_phase(axes, first, at, smooth, color=colour, label=without_formulas(curve.name))
            for part in others:
                axes.axvline(at[(part.steps or part.valid)[0]["step"]], color=colour, lw=0.8, ls=":")
                draw_phase(axes, part, at, smooth, color=colour)
    measures = " or ".join(dict.fromkeys(curve.measure for curve in curves))
    by_step.set(xlabel="step", ylabel=f"{measures}, nats per token", xscale="log" if log else "linear")
    by_time.set(xlabel="hours of training")
    legend(by_step, "line: training, dots: validation")
    return drawn


def draw_phase(axes: Any, part: Curve, at: Mapping[int, Any], smooth: float, **style: str) -> None:
    """A part of a curve that has one objective; `at`: where each step is drawn."""
    places, valid = ([at[line["step"]] for line in some] for some in part.lines)
    axes.plot(places, smooth_curve(part.values, smooth), lw=1, alpha=0.6, **style)
    values, errors = [line["valid"] for line in part.valid], [line["error"] for line in part.valid]
    axes.errorbar(valid, values, yerr=errors, color=style["color"], fmt="o-", ms=3, lw=1.2, capsize=2)


def nearest_step(steps: Sequence[int], places: Sequence[Any], step: int) -> Any:
    """The place of the training line whose step is nearest."""
    return places[min(range(len(steps)), key=lambda i: abs(steps[i] - step))]


def row(curve: Curve) -> list[str]:
    """The latest numbers of a run, as cells of a table."""
    measure = "" if curve.measure == "bound" else f" ({curve.measure})"
    cells = [curve.name, str(curve.steps[-1]["step"]), f"{curve.values[-1]:.4f}{measure}"]
    if curve.valid:
        best = min(curve.phases[-1].valid or curve.valid, key=lambda line: line["valid"])
        now = curve.valid[-1]
        cells += [f"{now['valid']:.4f} ± {now['error']:.4f}", f"{best['valid']:.4f} at step {best['step']}"]
    else:
        cells += ["", ""]
    return [*cells, f"{curve.hours[-1]:.2f}"]


def compare_runs(curves: Sequence[Curve], drawn: "Figure") -> Part:
    """Several runs as a part of a page: the figure and a table."""
    return Part(picture=svg(drawn), head=HEAD, rows=[row(curve) for curve in curves])


def of_run(folder: Path) -> Part:
    """One run as a part of a page: the figure and its latest numbers."""
    curve = read_curve(folder)
    _, step, bound, valid, best, hours = row(curve)
    facts = [
        ("step", step),
        (f"{curve.measure} in training", f"{bound} nats per token"),
        ("hours of training", hours),
    ]
    if valid:
        facts += [("validation", f"{valid} nats per token"), ("best", best)]
    return Part("Learning curves", picture=svg(curves_figure([curve])), facts=facts)
