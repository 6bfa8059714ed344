"""A study: rows to train or load, what to measure of them, and the published numbers, read from a TOML file.

    title = "Two objectives"
    seeds = [1, 2]
    data = { train = "my_texts/train.txt", test = "my_texts/test.txt", prepare = { vocab = 1024 } }
    train = { steps = 1000, model = { width = 128, blocks = 4 } }
    column = [{ name = "perplexity", measure = "test", value = "perplexity", error = "standard_error" }]
    row = [{ name = "MDLM" }, { name = "AR", train = { objective = { name = "ar" } } }]
    [measure.test]
    verb = "evaluate"
    arguments = ["{test}"]

A scale is a table of the same keys that is laid over the file: `[scale.smoke]`, `[scale.cpu]`, `[scale.paper]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from unmask.errors import UserError, unknown
from unmask.settings import merge_settings
from unmask.studies.checks import (
    Table,
    check_keys,
    check_table,
    choose_from,
    list_of_tables,
    over,
    positive,
    text,
    whole_numbers,
)
from unmask.studies.row import StudyRow, rows_of
from unmask.untrusted import read_toml_table

TOP = ("base", "title", "about", "source", "seeds", "threads", "budget", "seconds", "like", "compare", "hardware")
TABLES = ("data", "train", "measure", "column", "row", "picture", "scale")
SPLITS = ("train", "valid", "test")
SOURCE = (
    *("path", "documents", "separator", "field", "join", "detokenize", "limit"),
    *("given", "answer", "between"),  # of pairs
)


@dataclass(frozen=True)
class Verb:
    """A command of unmask that measures a model and writes its result with --out."""

    options: tuple[str, ...] = ()  # always added
    aside: str = ""  # a file of numbers per token that it writes with these options, for paired differences
    out: str = "result.json"  # what --out is given
    result: str = "result.json"  # the file with the result


VERBS = {
    "evaluate": Verb(("--each-token",), aside="--write"),
    "quality": Verb(),
    "frontier": Verb(out="result"),
    "classify": Verb(("--resume",), out="run", result="run/result.json"),
}


@dataclass(frozen=True)
class Measure:
    """A command that is run on the model of every row."""

    name: str
    verb: str
    arguments: tuple[str, ...] = ()
    options: Table = field(default_factory=dict)
    seeds: tuple[int, ...] = ()  # repeat with these seeds; empty: once, with the command's own


@dataclass(frozen=True)
class Column:
    """A number of a measurement."""

    name: str
    measure: str
    value: str  # its place in the result: "perplexity", "results[set=ptb].perplexity"
    error: str = ""  # the place of its standard error, shown when there is one seed only
    unit: str = ""
    better: Literal["lower", "higher", ""] = "lower"
    digits: int = 2
    scale: float = 1.0  # multiplies the value
    trials: str = ""  # the place of its values by trial: differences to the row compare.to are paired by trial


@dataclass(frozen=True)
class Study:
    """A study at one scale."""

    path: Path
    scale: str
    title: str
    about: str
    source: str
    hardware: str  # what the scale needs, if it is more than a small machine
    seeds: tuple[int, ...]
    threads: int
    budget: Literal["steps", "flops", "seconds"]
    seconds: float  # of each training, if the budget is seconds
    like: str  # the row whose FLOPs the others get, if the budget is FLOPs
    compare: Table  # to = ROW: differences to it, paired by token (measure = NAME) and by trial (trials of a column)
    data: Table
    measures: tuple[Measure, ...]
    columns: tuple[Column, ...]
    rows: tuple[StudyRow, ...]
    picture: Table

    def row(self, name: str) -> StudyRow:
        return next(one for one in self.rows if one.name == name)


def read_study(path: Path, scale: str = "") -> Study:
    """The study in a file at a scale; everything in it is checked."""
    content = read_toml_table(path)
    if "base" in content:
        content = over(read_toml_table(path.parent / text(content, "base")), content)
    try:
        return study_of(content, path, scale)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def study_of(content: Table, path: Path, scale: str) -> Study:
    check_keys("key", content, (*TOP, *TABLES))
    scales = check_table(content.get("scale", {}), "scale")
    if scale and scale not in scales:
        raise (
            unknown("scale", scale, scales) if scales else UserError(f"the study has no scales; leave out {scale!r}.")
        )
    if not scale and scales:
        raise UserError(f"choose a scale: {', '.join(f'--scale {name}' for name in scales)}.")
    laid = check_table(scales.get(scale, {}), f"scale.{scale}")
    check_keys(f"key of [scale.{scale}]", laid, [*TOP, *(name for name in TABLES if name != "scale")])
    content = over({name: value for name, value in content.items() if name != "scale"}, laid)
    measures = tuple(
        measure_of(name, one) for name, one in check_table(content.get("measure", {}), "measure").items()
    )
    if not measures:
        raise UserError("nothing is measured: add a table [measure.NAME] with a verb.")
    columns = tuple(column_of(one, [one.name for one in measures]) for one in list_of_tables(content, "column"))
    rows = rows_of(content, scale, [one.name for one in columns], [one.name for one in measures])
    study = Study(
        path=path,
        scale=scale,
        title=text(content, "title", path.stem),
        about=text(content, "about"),
        source=text(content, "source"),
        hardware=text(content, "hardware"),
        seeds=whole_numbers(content.get("seeds", [1]), "seeds"),
        threads=whole_numbers([content.get("threads", 1)], "threads")[0],
        budget=choose_from(text(content, "budget", "steps"), "budget", ("steps", "flops", "seconds")),
        seconds=positive(content.get("seconds", 0), "seconds"),
        like=text(content, "like", rows[0].name),
        compare=check_table(content.get("compare", {}), "compare"),
        data=data_of(content.get("data", {}), path.parent),
        measures=measures,
        columns=columns,
        rows=rows,
        picture=check_table(content.get("picture", {}), "picture"),
    )
    check_references(study)
    return study


def check_references(study: Study) -> None:
    """Every name that is used exists, and no row begins after itself."""
    names = [row.name for row in study.rows]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UserError(f"two rows are called {doubled[0]!r}.")
    if (study.budget == "seconds") != bool(study.seconds):
        raise UserError('budget = "seconds" and seconds = N, of each training, belong together.')
    if study.like not in names:
        raise unknown("row for `like`", study.like, names)
    check_keys("key of [compare]", study.compare, ("to", "measure"))
    if study.compare:
        if study.compare.get("to") not in names:
            raise unknown("row for compare.to", str(study.compare.get("to")), names)
        measures = [one.name for one in study.measures]
        if "measure" in study.compare and study.compare["measure"] not in measures:
            raise unknown("measure", str(study.compare["measure"]), measures)
    for row in study.rows:
        check_row(study, row, names)
    if any(row.train is not None for row in study.rows) and not study.data:
        raise UserError("rows are trained, but there is no [data]: give train = FILES.")


def check_row(study: Study, row: StudyRow, names: Sequence[str]) -> None:
    """The rows that a row is of or begins after exist, and it is not one of them."""
    if row.of and row.of not in names:
        raise unknown(f"row for `of` of {row.name!r}", row.of, names)
    if row.of and study.row(row.of).of:
        raise UserError(f"the row {row.name!r} is of {row.of!r}, which has no model of its own.")
    seen, at = [row.name], row
    while at.after:
        if at.after not in names:
            raise unknown("row", at.after, names)
        at = study.row(at.after)
        if at.name in seen:
            raise UserError(f"the row {row.name!r} begins after itself: {' after '.join([*seen, at.name])}.")
        seen.append(at.name)


def measure_of(name: str, one: Any) -> Measure:
    one = check_table(one, f"measure.{name}")
    check_keys(f"key of [measure.{name}]", one, ("verb", "arguments", "options", "seeds"))
    verb = text(one, "verb")
    if verb not in VERBS:
        raise unknown(f"verb of [measure.{name}]", verb, VERBS)
    arguments = one.get("arguments", [])
    if not isinstance(arguments, list) or not all(isinstance(part, str) for part in arguments):
        raise UserError(f"measure.{name}.arguments must be a list of texts.")
    options = check_table(one.get("options", {}), f"measure.{name}.options")
    return Measure(
        name, verb, tuple(arguments), options, whole_numbers(one.get("seeds", []), f"measure.{name}.seeds")
    )


def column_of(one: Table, measures: Sequence[str]) -> Column:
    check_keys("key of [[column]]", one, tuple(Column.__dataclass_fields__))
    column = merge_settings(Column("", "", ""), one, "column")
    if not (column.name and column.measure and column.value):
        raise UserError(f"a column needs a name, a measure and a value; saw {dict(one)}.")
    if column.measure not in measures:
        raise unknown(f"measure of column {column.name!r}", column.measure, measures)
    return column


def data_of(one: Any, here: Path) -> Table:
    """Files by split, each a path or a table with a path and how to read it; or one source with its own splits.

    {here} in a path or an option of `unmask prepare` is the folder of the study's file.
    """
    one = check_table(one, "data")
    check_keys("key of [data]", one, (*SPLITS, "source", "prepare"))
    if one and not any(name in one for name in ("train", "test", "source")):
        raise UserError(
            "[data] needs train = FILES, test = FILES or both; or source = FOLDER, with splits of its own."
        )
    if "source" in one and any(split in one for split in SPLITS):
        raise UserError("[data] has a source with splits of its own, and files by split too: which is it?")
    data: dict[str, Any] = {}
    if one:
        options = check_table(one.get("prepare", {}), "data.prepare")
        data["prepare"] = {key: fill_word(value, "here", here) for key, value in options.items()}
    if "source" in one:
        data["source"] = fill_word(text(one, "source"), "here", here)
    for split in SPLITS:
        files = one.get(split, [])
        files = files if isinstance(files, list) else [files]
        if split in one:
            data[split] = [source_of(file, f"data.{split}", here) for file in files]
    return data


def source_of(one: Any, title: str, here: Path) -> Table:
    one = {"path": one} if isinstance(one, str) else check_table(one, title)
    check_keys(f"key of {title}", one, SOURCE)
    if not isinstance(one.get("path"), str):
        raise UserError(f"{title} needs a path; saw {dict(one)}.")
    return {**one, "path": fill_word(one["path"], "here", here)}


def fill_word(value: Any, word: str, place: Path) -> Any:
    """A text with {here} or {root} replaced by a folder; anything else as it is."""
    return value.replace("{" + word + "}", str(place.absolute())) if isinstance(value, str) else value


def only(study: Study, names: Sequence[str]) -> Study:
    """The study with some of its rows, and those whose weights they begin with."""
    known = [row.name for row in study.rows]
    wanted: list[str] = []
    for name in names:
        if name not in known:
            raise unknown("row", name, known)
        at = study.row(name)
        wanted.append(name)
        if at.of:
            at = study.row(at.of)
            wanted.append(at.name)
        while at.after:
            at = study.row(at.after)
            wanted.append(at.name)
    return replace(study, rows=tuple(row for row in study.rows if row.name in wanted))
