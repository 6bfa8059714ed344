"""A study's table: as text, markdown, a picture and a page, from the plain values of its JSON file."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError, unknown
from unmask.views.figure import COLOURS, INK, legend, panels, plain_ticks, require_matplotlib, svg
from unmask.views.page import Part, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = Mapping[str, Any]
HUGE = 1e6


def head(table: Table) -> list[str]:
    """The names of the columns: each measured one, then its published twin, if some row has one."""
    names = ["system"]
    for number, column in enumerate(table["columns"]):
        unit = f" ({column['unit']})" if column["unit"] else ""
        names.append(f"{column['name']}{unit}")
        if has_published(table, number):
            names.append(f"published {column['name']}")
        if has_trials(table, number):
            names.append(f"{column['name']}, less {table['compare']['to']}")
    if table["compare"] and "measure" in table["compare"]:
        names.append(f"nats per token, less {table['compare']['to']}")
    return [*names, "parameters", "training tokens", "training seconds", "differs from the published row in"]


def has_published(table: Table, number: int) -> bool:
    return any(row["cells"][number]["published"] is not None for row in table["rows"])


def has_trials(table: Table, number: int) -> bool:
    return any(row["cells"][number].get("less") for row in table["rows"])


def cells(table: Table, row: Table) -> list[str]:
    found = [row["name"]]
    missing = "failed" if row["failure"] else "not measured"
    for number, (column, cell) in enumerate(zip(table["columns"], row["cells"], strict=True)):
        found.append(missing if cell["value"] is None else shown(cell, column["digits"]))
        if has_published(table, number):
            found.append("" if cell["published"] is None else f"{cell['published']:g}")
        if has_trials(table, number):
            found.append(difference(cell["less"], column["digits"]))
    if table["compare"] and "measure" in table["compare"]:
        found.append(difference(row["difference"]))
    trained = row["trained"]
    found.append("" if trained is None else f"{trained['parameters']:,}")
    found.append("" if trained is None else f"{trained['tokens']:,}")
    found.append("" if row["train_seconds"] is None else f"{row['train_seconds']:,.0f}")
    return [*found, row["differs"]]


def shown(cell: Table, digits: int) -> str:
    error = "" if cell["error"] is None else f" ± {written(cell['error'], digits)}"
    seeds = f" ({len(cell['values'])} seeds)" if len(cell["values"]) > 1 else ""
    return f"{written(cell['value'], digits)}{error}{seeds}"


def written(value: float, digits: int) -> str:
    """A number with its digits; a huge one, as a model that has learned nothing may have, by its power of ten."""
    return f"{value:.{digits}f}" if abs(value) < HUGE else f"{value:.1e}"


def difference(paired: Table | None, digits: int = 4) -> str:
    return "" if paired is None else f"{paired['difference']:+.{digits}f} ± {paired['error']:.{digits}f}"


def columns_used(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Without the columns in which no row says anything."""
    kept = [i for i, name in enumerate(names) if i == 0 or any(row[i] for row in rows)]
    return [names[i] for i in kept], [[row[i] for i in kept] for row in rows]


def laid(table: Table) -> tuple[list[str], list[list[str]]]:
    return columns_used(head(table), [cells(table, row) for row in table["rows"]])


def as_text(table: Table) -> str:
    names, rows = laid(table)
    widths = [max(len(row[i]) for row in [names, *rows]) for i in range(len(names))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in [names, *rows]]
    return "\n".join([table["title"], "", *(line.rstrip() for line in lines), "", *failures(table), *notes(table)])


def as_markdown(table: Table) -> str:
    names, rows = laid(table)
    lines = [f"## {table['title']}", "", marked(names), marked(["---"] * len(names)), *map(marked, rows), ""]
    return "\n".join([*lines, *failures(table), *notes(table), ""])


def marked(row: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


def failures(table: Table) -> list[str]:
    return [f"{row['name']} failed: {row['failure']}" for row in table["rows"] if row["failure"]]


def notes(table: Table) -> list[str]:
    """What a reader has to know to read the numbers."""
    found = [table["about"]] if table["about"] else []
    if any(len(cell["values"]) > 1 for row in table["rows"] for cell in row["cells"]):
        found.append("± over several seeds: their standard deviation.")
    if table["compare"] and "measure" in table["compare"]:
        found.append("Differences in nats are paired: the same tokens, ± their standard error over text and seeds.")
    if any(has_trials(table, number) for number in range(len(table["columns"]))):
        found.append("Differences of scores are paired: the same seeds, ± their standard error over these seeds.")
    found += scaling_notes(table)
    if table["source"]:
        found.append(f"Published: {table['source']}.")
    threads = "1 thread" if table["threads"] == 1 else f"{table['threads']} threads"
    found.append(f"Scale {table['scale'] or 'of the file'}, {threads} per row, {table['budget']}.")
    return found


def as_page(table: Table) -> str:
    names, rows = laid(table)
    part = Part(
        "Table",
        warnings=failures(table),
        picture=svg(picture(table)) if drawable(table) else "",
        note=" ".join(notes(table)),
        head=names,
        rows=rows,
        record=table,
    )
    return page(table["title"], [part])


def drawable(table: Table) -> bool:
    return any(cell["value"] is not None for row in table["rows"] for cell in row["cells"])


def picture(table: Table) -> "Figure":
    """The study's figure: bars of its first column, or what its file says."""
    require_matplotlib("train")
    kind = table["picture"].get("kind", "bars")
    if kind not in PICTURES:
        raise unknown("kind of picture", str(kind), PICTURES)
    return PICTURES[kind](table)


def bars(table: Table) -> "Figure":
    """One column of every row, beside what was published."""
    number = number_of(table, table["picture"].get("y", table["columns"][0]["name"]))
    column = table["columns"][number]
    both = has_published(table, number)
    rows = [row for row in table["rows"] if row["cells"][number]["value"] is not None or both]
    height = max(4.5, 0.4 * len(rows))
    figure, axes_of = panels(2 if both else 1, width=13 if both else 9, height=height)
    for axes, which in zip(axes_of, ("value", "published"), strict=False):
        for at, row in enumerate(rows):
            cell = row["cells"][number]
            if cell[which] is not None:
                told = written(cell[which], column["digits"])
                if abs(cell[which]) >= HUGE:  # written at the edge, not drawn
                    edge = (0, at)
                    axes.annotate(
                        f" {told}", edge, xycoords=("axes fraction", "data"), va="center", fontsize=8, color=INK
                    )
                    continue
                length, error = cell[which], cell["error"] if which == "value" else None
                axes.barh(at, length, height=0.6, color=COLOURS[0 if which == "value" else 4], alpha=0.85)
                axes.errorbar(length, at, xerr=error, color=INK, capsize=2, lw=1)
                axes.annotate(f" {told}", (length + (error or 0), at), va="center", fontsize=8, color=INK)
        unit = f", {column['unit']}" if column["unit"] else ""
        axes.set_xlabel(column["name"] + unit + ((", here" if which == "value" else ", published") if both else ""))
        axes.set_xscale(table["picture"].get("xscale", "linear"))
        axes.margins(x=0.15)
    axes_of[0].set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes_of[0].invert_yaxis()
    return figure


def columns(table: Table) -> "Figure":
    """All columns, or those that are named, side by side, one colour for each row, beside what was published."""
    names = table["picture"].get("columns", [column["name"] for column in table["columns"]])
    numbers = [number_of(table, name) for name in names]
    kinds = ["value", "published"] if any(has_published(table, at) for at in numbers) else ["value"]
    rows = [
        row for row in table["rows"] if any(row["cells"][at][kind] is not None for at in numbers for kind in kinds)
    ]
    figure, axes_of = panels(len(kinds), width=6.5 * len(kinds))
    wide = 0.8 / len(rows)
    for axes, kind in zip(axes_of, kinds, strict=True):
        for place, row in enumerate(rows):
            chosen = [row["cells"][number] for number in numbers]
            found = [(at, cell) for at, cell in enumerate(chosen) if cell[kind] is not None]
            axes.bar(
                [at + (place - (len(rows) - 1) / 2) * wide for at, _ in found],
                [cell[kind] for _, cell in found],
                wide,
                yerr=[cell["error"] or 0.0 for _, cell in found] if kind == "value" else None,
                color=COLOURS[place % len(COLOURS)],
                error_kw={"lw": 1, "ecolor": INK},
                label=row["name"],
            )
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axes.set_title("here" if kind == "value" else "published", fontsize=10)
        axes.set(yscale=table["picture"].get("yscale", "linear"), ylabel=table["picture"].get("ylabel", ""))
    legend(axes_of[0])
    return figure


def lines(table: Table) -> "Figure":
    """A column against a quantity, one line for each group of rows."""
    asked = table["picture"]
    for name in ("x", "y"):
        if name not in asked:
            raise UserError(f"[picture] of lines needs x, y and, for several lines, group; {name} is missing.")
    number = number_of(table, asked["y"])
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in table["rows"]:
        cell = row["cells"][number]
        at = quantity(table, row, asked["x"])
        if cell["value"] is not None and at is not None:
            group = str(quantity(table, row, asked["group"])) if "group" in asked else table["title"]
            found.setdefault(group, []).append((float(at), cell["value"], cell["error"] or 0.0))
    figure, (axes,) = panels(1, width=8)
    for at, (group, points) in enumerate(found.items()):
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


def scaling_notes(table: Table) -> list[str]:
    """The fitted exponents in words."""
    found = []
    for fit in table["fits"]:
        if fit["size"] is None:
            found.append(
                f"{fit['group']}: fewer than two budgets whose best size lies between sizes that were trained."
            )
            continue
        size, loss = (
            f"{fit[name]['value']:.2f} ({fit[name]['low']:.2f} to {fit[name]['high']:.2f})"
            for name in ("size", "loss")
        )
        best = ", ".join(f"{one['parameters']:,.0f} at {one['flops']:.0e}" for one in fit["valleys"] if one["inside"])
        found.append(
            f"{fit['group']}: best size ∝ FLOP^{size}, loss ∝ FLOP^−{loss}, intervals of 90 %. Best sizes: {best}."
        )
    return found


def curves(table: Table) -> "Figure":
    """Validation by passes over the training text; of each group the row that reaches the lowest is drawn thick."""
    figure, (axes,) = panels(1, width=8)
    rows = [row for row in table["rows"] if row["curve"]]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    for at, group in enumerate(groups):
        own = [row for row in rows if row["group"] == group]
        best = min(own, key=lowest)
        for row in own:
            xs, ys = [point["passes"] for point in row["curve"]], [point["valid"] for point in row["curve"]]
            label = f"{row['name']}: {lowest(row):.3f}" if row is best else None
            axes.plot(
                xs,
                ys,
                color=COLOURS[at % len(COLOURS)],
                lw=2 if row is best else 0.7,
                alpha=1 if row is best else 0.5,
                label=label,
            )
    lows = [lowest(row) for row in rows]
    axes.set(xlabel="passes over the training text", ylabel="nats per token, validation", xscale="log")
    axes.set_ylim(min(lows) - 0.1, min(lows) + 1.5)
    plain_ticks(axes)
    legend(axes)
    return figure


def lowest(row: Table) -> float:
    return min(float(point["valid"]) for point in row["curve"])


PICTURES = {"bars": bars, "columns": columns, "lines": lines, "isoflop": isoflop, "curves": curves}


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
