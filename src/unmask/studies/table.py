"""The table of a study: what was measured, beside what was published, as plain values."""

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import UserError, unknown
from unmask.studies.isoflop import fit_scaling
from unmask.studies.pairing import Paired, by_trial, paired_difference
from unmask.studies.plan import MODEL, TOKENS, Task, costs, steps_of, tokens_seen, total_flops, train_of
from unmask.studies.row import StudyRow
from unmask.studies.run import is_done, read_result
from unmask.studies.study import Column, Study
from unmask.training import metrics

STEP = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<key>\w+)=(?P<value>[^\]]+)\])?")


@dataclass(frozen=True)
class Cell:
    """A number of a row."""

    value: float | None
    error: float | None  # with one seed the measurement's own, else the standard deviation over seeds
    values: tuple[float, ...]  # one per seed
    published: float | None
    records: tuple[str, ...]  # the files they were read from
    trials: tuple[float, ...] = ()  # one per trial of the measurement
    less: Paired | None = None  # the difference to the row compare.to, paired by trial


def dig(content: Any, path: str, missing: Any = None) -> Any:
    """A value by its place: `perplexity`, `drawn.seconds`, `results[set=ptb].perplexity`, or `missing`."""
    for part in path.split("."):
        match = STEP.fullmatch(part)
        if match is None or not isinstance(content, Mapping) or match["name"] not in content:
            return missing
        content = content[match["name"]]
        if match["key"]:
            content = next((one for one in content if str(one.get(match["key"])) == match["value"]), missing)
    return content


def places(content: Any, before: str = "") -> Iterator[str]:
    """The places of all numbers of a result, as `dig` takes them; elements of a list by their first text."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from places(value, f"{before}.{name}" if before else name)
    elif isinstance(content, list):
        for one in content:
            key = next((k for k, v in one.items() if isinstance(v, str)), None) if isinstance(one, Mapping) else None
            if key is not None:
                yield from places(one, f"{before}[{key}={one[key]}]")
    elif type(content) in (int, float):
        yield before


def check_places(study: Study, tasks: Sequence[Task]) -> None:
    """Refuse a column whose place is in none of the results that are there; one may be empty."""
    missing = object()
    for column in study.columns:
        results = [read_result(task.result) for task in tasks if task.measure == column.measure and is_done(task)]
        for place in filter(None, (column.value, column.error)):
            if results and all(dig(one, place, missing) is missing for one in results):
                raise unknown(f"number in the results of {column.measure!r}", place, places(results[0]))


def cell(column: Column, row: StudyRow, tasks: Sequence[Task], out: Path) -> Cell:
    """A column's number of a row: the mean over its seeds."""
    wanted = [task for task in tasks if task.row == row.name and task.measure == column.measure and is_done(task)]
    values, errors, records = [], [], []
    trials: list[float] = []
    for task in wanted:
        content = read_result(task.result)
        value = dig(content, column.value)
        if value is None:
            continue
        if type(value) not in (int, float):
            raise UserError(f"column {column.name!r}: {column.value} of {task.result} is no number: {value!r}.")
        values.append(float(value) * column.scale)
        records.append(str(task.result.relative_to(out)))
        spread = dig(content, column.error) if column.error else None
        errors.append(None if spread is None else float(spread) * column.scale)
        trials += [
            float(one) * column.scale for one in (dig(content, column.trials) if column.trials else None) or ()
        ]
    published = row.published.get(column.name)
    if not values:
        return Cell(None, None, (), published, ())
    error = statistics.stdev(values) if len(values) > 1 else errors[0]
    return Cell(statistics.fmean(values), error, tuple(values), published, tuple(records), tuple(trials))


def cells_of(study: Study, row: StudyRow, tasks: Sequence[Task], out: Path) -> list[Cell]:
    """A row's numbers; where there are trials, with the difference to the row that the study compares with."""
    cells = [cell(column, row, tasks, out) for column in study.columns]
    to = study.compare.get("to", row.name)
    if to == row.name:
        return cells
    others = [cell(column, study.row(to), tasks, out) if column.trials else None for column in study.columns]
    return [
        one if other is None else replace(one, less=by_trial(other.trials, one.trials))
        for one, other in zip(cells, others, strict=True)
    ]


def table_of(study: Study, tasks: Sequence[Task], out: Path, failures: Mapping[str, str]) -> dict[str, Any]:
    """The whole table: for JSON, and for whoever draws it."""
    rows = [table_row(study, row, tasks, out, failures) for row in study.rows]
    return {
        "title": study.title,
        "about": study.about,
        "source": study.source,
        "scale": study.scale,
        "file": study.path.name,
        "seeds": list(study.seeds),
        "threads": study.threads,
        "budget": budget_of(study),
        "columns": [asdict(column) for column in study.columns],
        "compare": dict(study.compare) or None,
        "picture": dict(study.picture),
        "fits": fits_of(study, rows),
        "rows": rows,
    }


def budget_of(study: Study) -> str:
    """What the trainings of all rows have in common."""
    if any(row.flops for row in study.rows):
        return "FLOPs as the rows say"
    steps = {train_of(row).steps for row in study.rows if row.train is not None}
    return "steps as the rows say" if study.budget == "steps" and len(steps) > 1 else f"equal {study.budget}"


def fits_of(study: Study, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is fitted to the rows: IsoFLOP curves, if the study's picture shows them."""
    if study.picture.get("kind") != "isoflop":
        return []
    names = [column.name for column in study.columns]
    return fit_scaling(rows, names.index(study.picture.get("y", names[0])))


def table_row(
    study: Study, row: StudyRow, tasks: Sequence[Task], out: Path, failures: Mapping[str, str]
) -> dict[str, Any]:
    own = [task for task in tasks if task.row == row.name]
    done = [task for task in own if is_done(task)]
    seconds = [step_seconds(task) for task in done if task.kind == "train"]
    reasons = [failures[task.name] for task in own if task.name in failures]
    difference = difference_of(study, row, tasks)
    return {
        "name": row.name,
        "group": row.group,
        "differs": row.differs,
        "changes": dict(row.changes),
        "cells": [asdict(one) for one in cells_of(study, row, tasks, out)],
        "difference": None if difference is None else asdict(difference),
        "complete": len(done) == len(own),
        "failure": reasons[0] if reasons else "",
        "trained": training_summary(study, row, tasks) if row.train is not None else None,
        "checkpoint": row.checkpoint,
        "train_seconds": statistics.fmean(seconds) if seconds else None,
        "curve": curve_of(study, row, tasks) if shows_curves(study) else [],
    }


def shows_curves(study: Study) -> bool:
    """Whether the study's picture shows learning curves, or has them beside it."""
    return study.picture.get("kind") == "curves" or bool(study.picture.get("curves"))


def step_seconds(task: Task) -> float:
    """The time of a training's steps, those before a stop included."""
    return sum(line.get("seconds", 0.0) for line in metrics.read_metrics(task.folder / MODEL))


def manifest_of(tasks: Sequence[Task]) -> dict[str, Any] | None:
    """What is known of the text that a study has prepared."""
    path = next((task.folder / "tokens" / "manifest.json" for task in tasks if task.kind == "data"), None)
    return dict(read_result(path)) if path is not None and path.is_file() else None


def curve_of(study: Study, row: StudyRow, tasks: Sequence[Task]) -> list[dict[str, float]]:
    """Validation during the training of a row with the first seed, by tokens and by passes over the training text.

    Of a warm start only what follows it: the numbers of two objectives do not compare.
    """
    own = next((task for task in tasks if task.row == row.name and task.kind == "train"), None)
    manifest = manifest_of(tasks)
    if own is None or manifest is None or not (own.folder / MODEL / metrics.FILE).is_file():
        return []
    train, size = train_of(row), manifest["splits"]["train"]["tokens"]
    step = train.optim.batch * train.text.length
    valid = [line for line in metrics.read_metrics(own.folder / MODEL) if "valid" in line]
    return [
        {
            "tokens": line["step"] * step,
            "passes": line["step"] * step / size,
            "valid": line["valid"],
            "error": line["error"],
        }
        for line in valid
        if line.get("objective") == valid[-1].get("objective")
    ]


def training_summary(study: Study, row: StudyRow, tasks: Sequence[Task]) -> dict[str, Any]:
    train, steps, manifest = train_of(row), steps_of(study, row), manifest_of(tasks)
    vocab = None if manifest is None else int(manifest["tokenizer"]["size"])
    return {
        "parameters": costs(study, row, vocab=vocab)[-1].parameters,
        "steps": steps or train.steps,
        "tokens": tokens_seen(study, row),
        "flops": total_flops(study, row, steps=steps, vocab=vocab),
        "objective": train.objective.name,
        "network": train.model.name,
    }


def difference_of(study: Study, row: StudyRow, tasks: Sequence[Task]) -> Paired | None:
    """The paired difference to the row that the study compares with."""
    if "measure" not in study.compare or row.name == study.compare["to"]:
        return None
    files = [
        [
            task.folder / TOKENS
            for task in tasks
            if task.row == name and task.measure == study.compare["measure"] and (task.folder / TOKENS).is_file()
        ]
        for name in (study.compare["to"], row.name)
    ]
    if not all(files):
        return None
    difference = paired_difference(*files)
    return difference if difference is not None and math.isfinite(difference.error) else None
