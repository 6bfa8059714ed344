"""The frontier: quality against cost of samplers as a figure and a table, from the points of `unmask frontier`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unmask.views.figure import COLOURS, legend, panels, require_matplotlib, svg
from unmask.views.page import Part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = Mapping[str, Any]

HEAD = ("sampler", "steps", "temperature", "passes", "s per sample", "gen. perplexity", "entropy", "repetition")
PARTIAL = "Partial: it was stopped before all points were done."


def frontier_figure(points: Sequence[Point], definition: str) -> "Figure":
    """Perplexity by forward passes, by time and by entropy. Low and left is good, at the entropy of real text."""
    require_matplotlib("eval")
    from matplotlib import ticker

    drawn, axes_of = panels(3, width=14)
    for number, (name, some) in enumerate(by_sampler(points).items()):
        colour, mark = COLOURS[number % len(COLOURS)], "osD^v"[number // len(COLOURS) % 5]
        values = [point["generative_perplexity"] for point in some]
        errors = [point["standard_error"] or 0 for point in some]
        for axes, place in zip(axes_of, ("calls", "seconds_per_sample", "entropy"), strict=True):
            at = [point[place]["value"] if place == "entropy" else point[place] for point in some]
            axes.errorbar(at, values, yerr=errors, color=colour, fmt=f"{mark}-", ms=4, lw=1.2, capsize=2, label=name)
    by_passes, by_time, by_entropy = axes_of
    by_passes.set(xlabel="forward passes", xscale="log", yscale="log", ylabel=f"generative perplexity ({definition})")
    by_time.set(xlabel="seconds per sample", xscale="log")
    by_entropy.set(xlabel="entropy of a sample, nats")
    for axis in (by_passes.xaxis, by_passes.yaxis, by_time.xaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(ticker.NullFormatter())
    legend(by_entropy)
    return drawn


def by_sampler(points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points of each line of the figure, by its name."""
    lines: dict[str, list[Point]] = {}
    for point in points:
        lines.setdefault(f"{method(point)}, T = {point['temperature']:g}", []).append(point)
    return lines


def method(point: Point) -> str:
    """The sampler of a point, and its cache."""
    return point["sampler"] + (f", {point['cache']}" if point.get("cache") else "")


def point_cells(point: Point) -> tuple[str, ...]:
    return (
        method(point),
        "" if point["steps"] is None else str(point["steps"]),
        f"{point['temperature']:g}",
        f"{point['calls']:,.0f}",
        f"{point['seconds_per_sample']:.3g}",
        f"{point['generative_perplexity']:.2f} ± {point['standard_error'] or 0:.2f}",
        f"{point['entropy']['value']:.3f} ± {point['entropy']['standard_error'] or 0:.3f}",
        f"{point['repetition']['value']:.3f}",
    )


def frontier_part(
    points: Sequence[Point], drawn: "Figure", record: Mapping[str, Any], *, partial: bool, title: str = ""
) -> Part:
    """The figure, its table and the record, as a part of a page."""
    means = "; ".join(sorted({point["means"] for point in points}))
    warnings = [f"{method(point)}: {point['warning']}" for point in points if point["warning"]]
    return Part(
        title,
        warnings=[*([PARTIAL] if partial else []), *warnings],
        picture=svg(drawn),
        note=f"Perplexity: {means}. Error bars over {points[0]['samples']} samples.",
        head=HEAD,
        rows=[point_cells(point) for point in points],
        record=record,
    )
