"""Tables of a TOML file: laid over each other, and checked with the nearest name that is right."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unmask.errors import UserError, unknown

Table = Mapping[str, Any]


COMPONENTS = ("model", "objective")  # each member has settings of its own: another name replaces the whole table


def over(below: Table, above: Table) -> dict[str, Any]:
    """Two tables, one laid over the other; a table that names another component replaces the one below."""
    merged = dict(below)
    for name, value in above.items():
        there = merged.get(name)
        if (
            isinstance(there, Mapping)
            and isinstance(value, Mapping)
            and (name not in COMPONENTS or value.get("name", 0) in (0, there.get("name", 0)))
        ):
            merged[name] = over(there, value)
        else:
            merged[name] = value
    return merged


def check_keys(kind: str, seen: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in seen:
        if name not in known:
            raise unknown(kind, name, known)


def check_table(one: Any, title: str) -> dict[str, Any]:
    if not isinstance(one, Mapping):
        raise UserError(f"{title} must be a table; saw {one!r}.")
    return dict(one)


def list_of_tables(content: Table, name: str) -> list[dict[str, Any]]:
    tables = content.get(name, [])
    if not isinstance(tables, list):
        raise UserError(f"write [[{name}]], with two brackets: there may be several.")
    return [check_table(one, name) for one in tables]


def text(content: Table, name: str, default: str = "") -> str:
    value = content.get(name, default)
    if not isinstance(value, str):
        raise UserError(f"{name} must be a text; saw {value!r}.")
    return value


def choose_from(value: str, title: str, known: Sequence[str]) -> Any:
    if value not in known:
        raise unknown(title, value, known)
    return value


def whole_numbers(values: Any, title: str) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(one) is int and one >= 0 for one in values):
        raise UserError(f"{title} must be whole numbers from 0; saw {values!r}.")
    return tuple(values)


def positive(value: Any, title: str) -> float:
    if type(value) not in (int, float) or value < 0:
        raise UserError(f"{title} must be a number from 0; saw {value!r}.")
    return float(value)
