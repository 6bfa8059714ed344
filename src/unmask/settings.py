"""Settings to TOML and back: what is written reads back equal; an unknown name is refused with the nearest one."""

import tomllib
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from unmask.errors import UserError, unknown

T = TypeVar("T")


def dumps(settings: Any) -> str:
    """A settings dataclass as TOML: its plain values, then a table for each dataclass in it."""
    values = asdict(settings)
    plain = {name: value for name, value in values.items() if not isinstance(value, dict)}
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    parts = ["\n".join(f"{name} = {literal(value)}" for name, value in plain.items())]
    for title, table in tables.items():
        parts.append("\n".join([f"[{title}]", *(f"{name} = {literal(value)}" for name, value in table.items())]))
    return "\n\n".join(parts) + "\n"


def literal(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def read(path: str | Path, default: T) -> T:
    """The settings a file holds, the others as in `default`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        return merged(default, tomllib.loads(text), "")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}.") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def merged(default: T, values: dict[str, Any], title: str) -> T:
    """The default with some values replaced, each checked for its name and type."""
    hints = get_type_hints(type(default))
    now = {field.name: getattr(default, field.name) for field in fields(default)}  # type: ignore[arg-type]
    for name, value in values.items():
        where = f"{title}.{name}" if title else name
        if name not in now:
            raise unknown(f"setting in [{title}]" if title else "setting", name, now)
        if is_dataclass(now[name]):
            if not isinstance(value, dict):
                raise UserError(f"{where} is a table of settings: write [{where}]; saw {value!r}.")
            now[name] = merged(now[name], value, where)
        else:
            now[name] = fitted(value, hints[name], where)
    return type(default)(**now)


def fitted(value: Any, kind: Any, where: str) -> Any:
    """A value of the type a field asks for: whole numbers may stand for others, nothing else is converted."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise unknown(f"choice for {where}", str(value), get_args(kind))
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UserError(f"{where} must be a {kind.__name__}, not {value!r}.")
    return value
