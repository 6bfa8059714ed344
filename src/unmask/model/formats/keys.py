"""Keys of a config.json, each checked: numbers, switches, and values that only one network has."""

from collections.abc import Mapping
from typing import Any

from unmask.errors import UserError

Keys = Mapping[str, str | tuple[str, Any]]  # a field of the spec: its key in config.json, perhaps with a default
FOLLOWING = {"inner": "hidden", "head": "features", "embed": "embedded", "positions": "reach"}  # a field that may be
# 0, and the property that then follows from other fields


def read_fields(config: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Fields of a spec: whole numbers, or what the default of their key is."""
    fields: dict[str, Any] = {}
    for field, entry in keys.items():
        key, usual = entry if isinstance(entry, tuple) else (entry, None)
        reader: Any = flag if isinstance(usual, bool) else number if isinstance(usual, float) else whole
        fields[field] = reader(config, key, usual) if usual is None or key in config else usual
    return fields


def config_fields(spec: Any, keys: Keys) -> dict[str, Any]:
    """The keys of a config.json for these fields of a spec."""
    known = {field: entry if isinstance(entry, str) else entry[0] for field, entry in keys.items()}
    return {key: getattr(spec, FOLLOWING.get(field, field)) for field, key in known.items()}


def check_fixed(table: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Refuse other values than these; null stands for a key that is missing."""
    for key, value in fixed.items():
        if table.get(key) is not None and table[key] != value:
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


def padded_vocab(config: Mapping[str, Any]) -> int:
    """The rows of the embedding: the vocabulary, up to the next multiple."""
    multiple = whole(config, "pad_vocab_size_multiple", 8)
    return -(-whole(config, "vocab_size") // multiple) * multiple
