"""Keys of a config.json, each checked: numbers, switches, and values that only one network has."""

from collections.abc import Mapping
from typing import Any

from unmask.errors import UserError


def check_fixed(table: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    for key, value in fixed.items():
        if table.get(key, value) != value:
            raise UserError(
                f"config.json says {key} = {table[key]!r:.60}: unmask supports only networks with {value!r}."
            )


def whole(table: Mapping[str, Any], key: str, usual: int | None = None) -> int:
    """A positive whole number."""
    value = table.get(key, usual)
    if value is None:
        raise UserError(f"config.json has no {key!r}.")
    if type(value) is not int or value < 1:
        raise UserError(f"config.json says {key} = {value!r:.60}: it must be a whole number from 1.")
    return value


def flag(table: Mapping[str, Any], key: str, usual: bool) -> bool:
    value = table.get(key, usual)
    if type(value) is not bool:
        raise UserError(f"config.json says {key} = {value!r:.60}: it must be true or false.")
    return value


def number(table: Mapping[str, Any], key: str, usual: float) -> float:
    value = table.get(key, usual)
    if type(value) not in (int, float):
        raise UserError(f"config.json says {key} = {value!r:.60}: it must be a number.")
    return float(value)
