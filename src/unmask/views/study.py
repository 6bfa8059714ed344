"""A study's table: as text, markdown and a page, from the plain values of its JSON file."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unmask.errors import how_many
from unmask.views.figure import svg
from unmask.views.page import Part, page
from unmask.views.study_picture import curves_beside, drawable, format_number, has_published, picture

Table = Mapping[str, Any]


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


def has_trials(table: Table, number: int) -> bool:
    return any(row["cells"][number].get("less") for row in table["rows"])


def cells(table: Table, row: Table) -> list[str]:
    texts = [row["name"]]
    missing = "failed" if row["failure"] else "not measured"
    for number, (column, cell) in enumerate(zip(table["columns"], row["cells"], strict=True)):
        texts.append(missing if cell["value"] is None else format_cell(cell, column["digits"]))
        if has_published(table, number):
            texts.append("" if cell["published"] is None else f"{cell['published']:g}")
        if has_trials(table, number):
            texts.append(difference(cell["less"], column["digits"]))
    if table["compare"] and "measure" in table["compare"]:
        texts.append(difference(row["difference"]))
    trained = row["trained"]
    texts.append("" if trained is None else f"{trained['parameters']:,}")
    texts.append("" if trained is None else f"{trained['tokens']:,}")
    texts.append("" if row["train_seconds"] is None else f"{row['train_seconds']:,.0f}")
    return [*texts, row["differs"]]


def format_cell(cell: Table, digits: int) -> str:
    error = "" if cell["error"] is None else f" ± {format_number(cell['error'], digits)}"
    seeds = f" ({len(cell['values'])} seeds)" if len(cell["values"]) > 1 else ""
    return f"{format_number(cell['value'], digits)}{error}{seeds}"


def difference(paired: Table | None, digits: int = 4) -> str:
    return "" if paired is None else f"{paired['difference']:+.{digits}f} ± {paired['error']:.{digits}f}"


def columns_used(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Without the columns in which no row says anything."""
    used = [i for i, name in enumerate(names) if i == 0 or any(row[i] for row in rows)]
    return [names[i] for i in used], [[row[i] for i in used] for row in rows]


def used_cells(table: Table) -> tuple[list[str], list[list[str]]]:
    return columns_used(head(table), [cells(table, row) for row in table["rows"]])


def as_text(table: Table) -> str:
    names, rows = used_cells(table)
    widths = [max(len(row[i]) for row in [names, *rows]) for i in range(len(names))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in [names, *rows]]
    return "\n".join([table["title"], "", *(line.rstrip() for line in lines), "", *failures(table), *notes(table)])


def as_markdown(table: Table) -> str:
    names, rows = used_cells(table)
    lines = [
        f"## {table['title']}",
        "",
        markdown_row(names),
        markdown_row(["---"] * len(names)),
        *map(markdown_row, rows),
        "",
    ]
    text = "\n".join([*lines, *failures(table), *notes(table), ""])
    return text.replace("&", "&amp;").replace("<", "&lt;")  # a name is no HTML


def markdown_row(row: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


def failures(table: Table) -> list[str]:
    return [f"{row['name']} failed: {row['failure']}" for row in table["rows"] if row["failure"]]


def notes(table: Table) -> list[str]:
    """What a reader has to know to read the numbers."""
    lines = [table["about"]] if table["about"] else []
    if any(len(cell["values"]) > 1 for row in table["rows"] for cell in row["cells"]):
        lines.append("± over several seeds: their standard deviation.")
    if table["compare"] and "measure" in table["compare"]:
        lines.append("Differences in nats are paired: the same tokens, ± their standard error over text and seeds.")
    if any(has_trials(table, number) for number in range(len(table["columns"]))):
        lines.append("Differences of scores are paired: the same seeds, ± their standard error over these seeds.")
    lines += scaling_notes(table)
    if table["source"]:
        lines.append(f"Published: {table['source']}.")
    threads = how_many(table["threads"], "thread")
    lines.append(f"Scale {table['scale'] or 'of the file'}, {threads} per row, {table['budget']}.")
    return lines


def as_page(table: Table) -> str:
    names, rows = used_cells(table)
    part = Part(
        "Table",
        warnings=failures(table),
        picture=svg(picture(table)) if drawable(table) else "",
        note=" ".join(notes(table)),
        head=names,
        rows=rows,
        record=table,
    )
    beside = curves_beside(table)
    parts = [part] if beside is None else [part, Part("Learning curves", picture=svg(beside))]
    return page(table["title"], parts)


def scaling_notes(table: Table) -> list[str]:
    """The fitted exponents in words."""
    lines = []
    for fit in table["fits"]:
        if fit["size"] is None:
            lines.append(
                f"{fit['group']}: fewer than two budgets whose best size lies between sizes that were trained."
            )
            continue
        size, loss = (
            f"{fit[name]['value']:.2f} ({fit[name]['low']:.2f} to {fit[name]['high']:.2f})"
            for name in ("size", "loss")
        )
        best = ", ".join(f"{one['parameters']:,.0f} at {one['flops']:.0e}" for one in fit["valleys"] if one["inside"])
        lines.append(
            f"{fit['group']}: best size ∝ FLOP^{size}, loss ∝ FLOP^−{loss}, intervals of 90 %. Best sizes: {best}."
        )
    return lines
