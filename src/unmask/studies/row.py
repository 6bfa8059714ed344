"""The rows of a study: systems to train, to load, or to measure in another way."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.errors import UserError, unknown
from unmask.settings import merge_settings
from unmask.studies.checks import Table, check_keys, check_table, list_of_tables, over, positive, text
from unmask.training.settings import Train

ROW = (
    *("name", "group", "train", "checkpoint", "of", "after"),
    *("measures", "options", "published", "differs", "over", "scale", "only", "flops"),
)


@dataclass(frozen=True)
class StudyRow:
    """One system."""

    name: str
    group: str = ""
    train: Table | None = None  # settings of its run, complete; None: it is not trained here
    checkpoint: str = ""  # measured as it is
    of: str = ""  # the row whose model it measures, with options of its own
    after: str = ""  # the row from whose weights its training begins
    measures: tuple[str, ...] | None = None  # None: all
    options: Table = field(default_factory=dict)  # by measure, laid over its options
    published: Table = field(default_factory=dict)  # by column
    differs: str = ""  # from the published row, in words
    changes: Table = field(default_factory=dict)  # what `over` set
    flops: float = 0.0  # of its training, which set the number of steps; 0: the study's budget does


def rows_of(content: Table, scale: str, columns: Sequence[str], measures: Sequence[str]) -> tuple[StudyRow, ...]:
    shared, rows = check_table(content.get("train", {}), "train"), []
    for one in list_of_tables(content, "row"):
        if not isinstance(one.get("name"), str) or not one["name"].strip():
            raise UserError("a row needs a name.")
        title = f"row {one['name']!r}"
        check_keys(f"key of {title}", one, ROW)
        if scale and scale not in one.get("only", [scale]):
            continue
        laid = check_table(
            check_table(one.get("scale", {}), f"{title} scale").get(scale, {}), f"{title} scale.{scale}"
        )
        check_keys(f"key of {title}", laid, ROW)
        one = over({name: value for name, value in one.items() if name != "scale"}, laid)
        for own, changes in expand_row(one, title):
            rows.append(row_of(own, changes, shared, columns, measures))
    if not rows:
        raise UserError("the study has no rows: add [[row]].")
    return tuple(rows)


def row_of(one: Table, changes: Table, shared: Table, columns: Sequence[str], measures: Sequence[str]) -> StudyRow:
    title, checkpoint, of = f"row {one['name']!r}", text(one, "checkpoint"), text(one, "of")
    if (checkpoint or of) and ("train" in one or "after" in one):
        raise UserError(
            f"{title} has a {'checkpoint' if checkpoint else 'row it is of'} and is trained too: which is it?"
        )
    if checkpoint and of:
        raise UserError(f"{title} has a checkpoint and is of another row: which is it?")
    options = check_table(one.get("options", {}), f"{title} options")
    check_keys(f"measure in the options of {title}", options, measures)
    for name in one.get("measures", []):
        if name not in measures:
            raise unknown(f"measure of {title}", str(name), measures)
    published = check_table(one.get("published", {}), f"{title} published")
    check_keys(f"column published of {title}", published, columns)
    settings: Table | None = None
    if not checkpoint and not of:
        settings = over(shared, check_table(one.get("train", {}), f"{title} train"))
        for name in ("data", "out", "init"):
            if name in settings:
                advice = "after = ROW" if name == "init" else "the study's own [data]"
                raise UserError(f"{title}: train.{name} is set by the study; use {advice}.")
        try:
            merge_settings(Train(), {**settings, "init": text(one, "after")})
        except UserError as error:
            raise UserError(f"{title}, train: {error}") from None
    return StudyRow(
        name=one["name"],
        group=text(one, "group"),
        train=settings,
        checkpoint=checkpoint,
        of=of,
        after=text(one, "after"),
        measures=tuple(one["measures"]) if "measures" in one else None,
        options={name: check_table(value, f"{title} options.{name}") for name, value in options.items()},
        published=published,
        differs=text(one, "differs"),
        changes=changes,
        flops=positive(one.get("flops", 0), f"{title}: flops"),
    )


def expand_row(one: Table, title: str) -> Iterable[tuple[Table, Table]]:
    """A row for every combination of the values in `over`; its name may contain {setting}."""
    axes = check_table(one.get("over", {}), f"{title} over")
    if not axes:
        yield one, {}
        return
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"{title}: over.{name!r} must be a list of values.")
    for values in itertools.product(*axes.values()):
        changes = dict(zip(axes, values, strict=True))
        laid: dict[str, Any] = {}
        for name, value in changes.items():
            at = laid
            *path, last = (name if name.startswith("options.") or name in ROW else f"train.{name}").split(".")
            for part in path:
                at = at.setdefault(part, {})
            at[last] = value
        title = one["name"]
        for name, value in changes.items():
            title = title.replace("{" + name + "}", f"{value:g}" if isinstance(value, float) else str(value))
        yield over({**one, "name": title}, laid), changes
