"""The picture of a study's table: bars, distances in nats, dots by column, lines, curves or IsoFLOP curves."""

from collections.abc import Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError, unknown
from unmask.views.figure import COLOURS, INK, legend, panels, plain_ticks, require_matplotlib, without_formulas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = Mapping[str, Any]
HUGE = 1e6
MANY = 8  # names in a legend that leave room for what is drawn
FAR = 10  # times the lowest curve: one that stays above is named and not shown


def drawable(table: Table) -> bool:
    return any(cell["value"] is not None for row in table["rows"] for cell in row["cells"])


def picture(table: Table) -> "Figure":
    """The study's figure: bars of its first column, or what its file says."""
    require_matplotlib("train")
    kind = table["picture"].get("kind", "bars")
    if kind not in PICTURES:
        raise unknown("kind of picture", str(kind), PICTURES)
    return PICTURES[kind](without_formulas(table))


def bars(table: Table) -> "Figure":
    """One column of every row, with a mark where the published number is."""
    number = number_of(table, table["picture"].get("y", table["columns"][0]["name"]))
    column = table["columns"][number]
    cells_of = {row["name"]: row["cells"][number] for row in table["rows"]}
    figure, (axes,) = panels(1, width=9, height=max(4.5, 0.4 * len(cells_of)))
    for at, cell in enumerate(cells_of.values()):
        if cell["published"] is not None:
            axes.plot(cell["published"], at, "D", color=COLOURS[1], zorder=3)
        if cell["value"] is None:
            continue
        error, drawn = cell["error"] or 0, abs(cell["value"]) < HUGE  # a huge number is written at the edge
        if drawn:
            axes.barh(at, cell["value"], height=0.6, color=COLOURS[0], alpha=0.85)
            axes.errorbar(cell["value"], at, xerr=error, color=INK, capsize=2, lw=1)
        write_beside(
            axes, format_number(cell["value"], column["digits"]), (cell["value"] + error if drawn else 0, at)
        )
    if has_published(table, number):
        axes.plot([], [], "D", color=COLOURS[1], label="published")
        legend(axes)
    axes.set_xlabel(column["name"] + (f", {column['unit']}" if column["unit"] else ""))
    axes.margins(x=0.15)
    name_rows(axes, list(cells_of))
    return figure


def distances(table: Table) -> "Figure":
    """Nats of every row above those of the row `from`: measured with error bars, and published, on one axis."""
    asked = table["picture"]
    reference = asked.get("from", table["compare"].get("to"))
    series = {"here": nats_here(table, asked.get("y", "nats"))}
    if "published" in asked:
        series["published"] = nats_published(table, asked["published"])
    names = [row["name"] for row in table["rows"]]
    if reference not in names:
        raise unknown("row", str(reference), names)
    figure, (axes,) = panels(1, width=9, height=max(3.0, 0.42 * len(names)))
    for place, (label, nats) in enumerate(series.items()):
        axes.plot([], [], "os"[place], color=COLOURS[place], label=label)
        if reference not in nats:  # it failed, or was not run
            continue
        for name in nats.keys() & set(names):
            distance, error = nats[name][0] - nats[reference][0], nats[name][1]
            at = names.index(name) + (0.3 * place - 0.15) * (len(series) - 1)
            edge = asked.get("limit", distance)
            if beyond := distance > edge:  # an arrow at the edge
                distance, error, text = edge, 0.0, f"{distance:+.2f} ± {error:.2f}"
            else:
                text = "" if name == reference else f"{distance:+.3f}".replace("-", "−")
            marker = ">" if beyond else "os"[place]
            axes.errorbar(distance, at, xerr=error, fmt=marker, ms=5, color=COLOURS[place], capsize=2)
            write_beside(axes, text, (distance + error, at), left=beyond)
    axes.axvline(0, color=INK, lw=0.8, alpha=0.6)
    unit = table["columns"][number_of(table, asked.get("y", "nats"))]["unit"]
    axes.set_xlabel(" ".join(["nats", *unit.split(), f"above {reference} (lower is better)"]))
    axes.margins(x=0.12)
    name_rows(axes, names)
    legend(axes)
    return figure


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """The names of rows at the y axis, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def write_beside(axes: Any, text: str, place: tuple[float, float], *, left: bool = False) -> None:
    side = {"xytext": (-7 if left else 7, 0), "textcoords": "offset points", "ha": "right" if left else "left"}
    axes.annotate(text, place, va="center", fontsize=8, color=INK, **side)


def nats_here(table: Table, column: str) -> dict[str, tuple[float, float]]:
    """By row: the measured nats and their error."""
    number = number_of(table, column)
    named = [(row["name"], row["cells"][number]) for row in table["rows"]]
    return {name: (cell["value"], cell["error"] or 0.0) for name, cell in named if cell["value"] is not None}


def nats_published(table: Table, column: str) -> dict[str, tuple[float, float]]:
    """By row: the logarithm of the published perplexity; its error is not known."""
    number = number_of(table, column)
    named = [(row["name"], row["cells"][number]["published"]) for row in table["rows"]]
    return {name: (log(perplexity), 0.0) for name, perplexity in named if perplexity is not None}


def columns(table: Table) -> "Figure":
    """All columns, or those that are named: a dot for each row, measured with error bars, beside what was published.

    With `from`, perplexities become distances to that row: nats per token, on one axis for both panels.
    """
    asked = table["picture"]
    names = asked.get("columns", [column["name"] for column in table["columns"]])
    numbers = [number_of(table, name) for name in names]
    kinds = ["value", "published"] if any(has_published(table, at) for at in numbers) else ["value"]
    rows = [
        row for row in table["rows"] if any(row["cells"][at][kind] is not None for at in numbers for kind in kinds)
    ]
    figure, axes_of = panels(len(kinds), width=6.5 * len(kinds))
    for axes, kind in zip(axes_of, kinds, strict=True):
        for place, row in enumerate(rows):
            points = [(at, *point_of(table, row, number, kind)) for at, number in enumerate(numbers)]
            aside = (place - (len(rows) - 1) / 2) * 0.6 / len(rows)
            drawn = [(at + aside, value, error) for at, value, error in points if value is not None]
            look = {"fmt": "os^Dv"[place % 5], "ms": 5, "capsize": 2, "lw": 1, "color": COLOURS[place % len(COLOURS)]}
            xs, ys, errors = zip(*drawn, strict=True) if drawn else ((), (), ())
            axes.errorbar(xs, ys, yerr=errors, label=row["name"], **look)
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axes.set_title("here" if kind == "value" else "published", fontsize=10)
        axes.set(yscale=asked.get("yscale", "linear"), ylabel=asked.get("ylabel", ""))
        axes.grid(axis="y", alpha=0.3)
        if "from" in asked:
            axes.axhline(0, color=INK, lw=0.8, alpha=0.6)
    legend(axes_of[0])
    return figure


def point_of(table: Table, row: Table, number: int, kind: str) -> tuple[float | None, float]:
    """What `columns` draws of a cell: the number and its error, or how far it lies above the row `from`, in nats."""
    cell, reference = row["cells"][number], table["picture"].get("from")
    value, error = cell[kind], (cell["error"] or 0.0) if kind == "value" else 0.0
    if reference is None or value is None:
        return value, error
    rows = {one["name"]: one for one in table["rows"]}
    if reference not in rows:
        raise unknown("row", str(reference), rows)
    other = rows[reference]["cells"][number][kind]
    return (None, 0.0) if other is None else (log(value / other), error / value)


def curve_lines(table: Table) -> "Figure":
    """A column against a quantity, one line for each group of rows."""
    asked = table["picture"]
    for name in ("x", "y"):
        if name not in asked:
            raise UserError(f"[picture] of lines needs x, y and, for several lines, group; {name} is missing.")
    number = number_of(table, asked["y"])
    points_by_line: dict[str, list[tuple[float, float, float]]] = {}
    for row in table["rows"]:
        cell = row["cells"][number]
        at = quantity(table, row, asked["x"])
        if cell["value"] is not None and at is not None:
            group = str(quantity(table, row, asked["group"])) if "group" in asked else table["title"]
            points_by_line.setdefault(group, []).append((float(at), cell["value"], cell["error"] or 0.0))
    figure, (axes,) = panels(1, width=8)
    for at, (group, points) in enumerate(points_by_line.items()):
        xs, ys, errors = zip(*sorted(points), strict=True)
        axes.errorbar(
            xs, ys, yerr=errors, color=COLOURS[at % len(COLOURS)], fmt="o-", ms=4, lw=1.2, capsize=2, label=group
        )
    axes.set(xlabel=asked.get("xlabel", asked["x"]), ylabel=asked.get("ylabel", asked["y"]))
    axes.set(xscale=asked.get("xscale", "linear"), yscale=asked.get("yscale", "linear"))
    plain_ticks(axes)
    legend(axes)
    return figure


def isoflop(table: Table) -> "Figure":
    """A column by size of network, one panel a group and one curve a budget, each with its lowest point."""
    number = number_of(table, table["picture"].get("y", table["columns"][0]["name"]))
    figure, axes_of = panels(len(table["fits"]), width=5.5 * len(table["fits"]))
    measured = [row for row in table["rows"] if row["cells"][number]["value"]]
    budgets = sorted({quantity(table, row, "flops") for row in measured})  # one colour each, in all panels
    for axes, fit in zip(axes_of, table["fits"], strict=True):
        rows = [row for row in measured if row["group"] == fit["group"]]
        for at, budget in enumerate(budgets):
            own = [row for row in rows if quantity(table, row, "flops") == budget]
            if not own:
                continue
            points = sorted((row["trained"]["parameters"], row["cells"][number]["value"]) for row in own)
            axes.plot(
                *zip(*points, strict=True),
                "o-",
                color=COLOURS[at % len(COLOURS)],
                ms=4,
                lw=1.2,
                label=f"{budget:.0e} FLOP",
            )
            for valley in fit["valleys"]:
                if valley["flops"] == budget and valley["inside"]:
                    axes.plot(
                        valley["parameters"], valley["loss"], "*", color=COLOURS[at % len(COLOURS)], ms=11, mec=INK
                    )
        axes.set(xlabel="parameters", ylabel=table["columns"][number]["name"], xscale="log", title=fit["group"])
        plain_ticks(axes)
        legend(axes)
    return figure


def curves(table: Table) -> "Figure":
    """Validation by passes over the training text; of each group the row that reaches the lowest is drawn thick.

    Beside another picture every row is a group of its own, and the passes are tokens.
    """
    figure, (axes,) = panels(1, width=8)
    each = bool(table["picture"].get("curves"))
    rows, by = [row for row in table["rows"] if row["curve"]], "name" if each else "group"
    groups = list(dict.fromkeys(row[by] for row in rows))
    seen, label_of_seen = ("tokens", "training tokens") if each else ("passes", "passes over the training text")
    for at, group in enumerate(groups):
        own = [row for row in rows if row[by] == group]
        best = min(own, key=lowest)
        for row in own:
            xs, ys = [point[seen] for point in row["curve"]], [point["valid"] for point in row["curve"]]
            label = f"{row['name']}: {lowest(row):.3f}" if row is best else None
            axes.plot(
                xs,
                ys,
                color=COLOURS[at % len(COLOURS)],
                linestyle=("-", "--", ":")[at // len(COLOURS) % 3],
                marker=".",
                lw=2 if row is best else 0.7,
                alpha=1 if row is best else 0.5,
                label=label,
            )
    every = [lowest(row) for row in rows]
    lows = [low for low in every if low <= FAR * max(0.1, min(every))]
    axes.set(xlabel=label_of_seen, ylabel="nats per token, validation", xscale="log")
    axes.set_ylim(min(lows) - 0.1, max(min(lows) + 1.5, max(lows) + 0.5 if each else 0))
    plain_ticks(axes)
    legend(axes, aside=len(groups) > MANY)
    return figure


def curves_beside(table: Table) -> "Figure | None":
    """The learning curves of a study that wants them beside its picture, if there are any."""
    wanted = table["picture"].get("curves") and any(row["curve"] for row in table["rows"])
    return curves(without_formulas(table)) if wanted else None


def lowest(row: Table) -> float:
    return min(float(point["valid"]) for point in row["curve"])


PICTURES = {
    "bars": bars,
    "distances": distances,
    "columns": columns,
    "lines": curve_lines,
    "isoflop": isoflop,
    "curves": curves,
}


def number_of(table: Table, name: str) -> int:
    names = [column["name"] for column in table["columns"]]
    if name not in names:
        raise unknown("column", str(name), names)
    return names.index(name)


def quantity(table: Table, row: Table, name: str) -> Any:
    """What a picture may show of a row: a column, a setting that `over` changed, or what its training amounts to."""
    for place in (row["changes"], row["trained"] or {}, row):
        if name in place:
            return place[name]
    return row["cells"][number_of(table, name)]["value"]


def has_published(table: Table, number: int) -> bool:
    return any(row["cells"][number]["published"] is not None for row in table["rows"])


def format_number(value: float, digits: int) -> str:
    """A number with its digits; a huge one, as a model that has learned nothing may have, by its power of ten."""
    return f"{value:.{digits}f}" if abs(value) < HUGE else f"{value:.1e}"
