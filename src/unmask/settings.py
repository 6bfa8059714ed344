"""Settings to TOML and back: written settings read back equal; an unknown name is refused with the nearest one.

A settings dataclass is a table. A component of a registry is a table with its `name`, or, if its registry is inline,
one line (`schedule = "log-linear:eps=0"`). Derived fields are neither written nor read.
"""

import inspect
import tokenize
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tomli_w

from unmask.errors import UserError, unknown
from unmask.registry import own_fields, spell_component
from unmask.untrusted import read_toml_table

T = TypeVar("T")


class Short:
    """A mark of settings whose name alone is a flag too: --length beside --text.length."""


Shortly = Annotated[T, Short]  # of a setting: `length: Shortly[int] = 128`


def at_least(low: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= low:
            raise UserError(f"{name} must be at least {low}, not {value}.")


def check_shares(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise UserError(f"{name} must be a share from 0 to 1, not {value}.")


def describe_settings(settings: Any) -> dict[str, Any]:
    """A settings dataclass as plain values and tables; a component's name comes first, None is omitted."""
    table: dict[str, Any] = {"name": settings.name} if hasattr(settings, "registry") else {}
    for name in own_fields(type(settings)):
        value = getattr(settings, name)
        if hasattr(value, "registry") and value.registry.inline:
            table[name] = spell_component(value)
        elif is_dataclass(value):
            table[name] = describe_settings(value)
        elif value is not None:
            table[name] = list(value) if isinstance(value, tuple) else value
    return table


def dumps(settings: Any) -> str:
    """A settings dataclass as TOML."""
    return tomli_w.dumps(describe_settings(settings))


def read_toml(path: str | Path, default: T) -> T:
    """The settings in a file, with those of `default` for the rest."""
    content = read_toml_table(path)
    try:
        return merge_settings(default, content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def names_in(path: str | Path) -> set[str]:
    """The dotted names of the settings that a file gives."""
    return set(flat(read_toml_table(path)))


def flat(table: Mapping[str, Any], title: str = "") -> dict[str, Any]:
    """The values of nested tables by their dotted names.

    >>> flat({"seed": 1, "optim": {"lr": 0.1}})
    {'seed': 1, 'optim.lr': 0.1}
    """
    values: dict[str, Any] = {}
    for name, value in table.items():
        values |= flat(value, f"{title}{name}.") if isinstance(value, Mapping) else {f"{title}{name}": value}
    return values


def groups_of(settings: Any) -> list[str]:
    """The names of the fields that are tables of settings themselves."""
    return [one.name for one in fields(settings) if is_dataclass(getattr(settings, one.name))]


def merge_settings(default: T, values: object, title: str = "") -> T:
    """The default with some values replaced; names and types are checked.

    A table that names another component than the default's starts from that component's own defaults.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{title or 'the settings'} must be a table of names and values; saw {values!r:.80}.")
    values, given = dict(values), title
    if hasattr(default, "registry"):
        component: Any = default
        name = values.pop("name", component.name)
        if not isinstance(name, str):
            raise UserError(f"{title}.name must be a name; saw {name!r}.")
        if name != component.name:
            default = component.registry.turned(component, name)
    kind: Any = type(default)
    known, hints = own_fields(kind), get_type_hints(kind)
    now = {one.name: getattr(default, one.name) for one in fields(kind) if one.init}
    for name, value in values.items():
        where = f"{given}.{name}" if given else name
        if name in now and name not in known:
            raise UserError(f"{where} cannot be set: it follows from the data and the other settings.")
        if name not in known:
            raise unknown(f"setting in [{given}]" if given else "setting", name, known)
        now[name] = new_value(now[name], value, hints[name], where)
    return kind(**now)


def new_value(old: Any, value: Any, kind: Any, where: str) -> Any:
    """The new value of a field, checked against the type of the old one."""
    if hasattr(old, "registry") and old.registry.inline:
        if not isinstance(value, str):
            raise UserError(f"{where} must be one line, such as {spell_component(old)!r}; saw {value!r}.")
        return old.registry.make(value)
    if is_dataclass(old) and not isinstance(old, type):
        if not isinstance(value, Mapping):
            raise UserError(f"{where} is a table of settings: write [{where}]; saw {value!r}.")
        return merge_settings(old, value, where)
    return fit_type(value, kind, where)


def fit_type(value: Any, kind: Any, where: str) -> Any:
    """A value of the field's type: int is accepted for float, nothing else is converted."""
    if get_origin(kind) in (Union, UnionType):
        refusals: list[UserError] = []
        for one in get_args(kind):
            try:
                return fit_type(value, one, where)
            except UserError as error:
                refusals.append(error)
        raise refusals[0]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise unknown(f"choice for {where}", str(value), map(str, get_args(kind)))
        return value
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(fit_type(one, get_args(kind)[0], where) for one in value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is NoneType and value is None:
        return None
    if type(value) is not kind:
        raise UserError(f"{where} must be a {getattr(kind, '__name__', kind)}, not {value!r}.")
    return value


@cache
def help_of(kind: type) -> dict[str, str]:
    """The comment after each field of a dataclass, by name: the help text of the option."""
    texts: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if not is_dataclass(one) or one.__module__ == "builtins":
            continue
        try:
            source = inspect.getsource(one)
        except (OSError, TypeError):  # a class without source
            continue
        name = ""
        for token in tokenize.generate_tokens(StringIO(source).readline):
            if token.type == tokenize.NAME and token.start[1] == 4:
                name = token.string
            elif token.type == tokenize.COMMENT and token.start[1] > 4 and name:
                texts[name] = (
                    f"{texts[name]} {token.string[1:].strip()}" if name in texts else token.string[1:].strip()
                )
    names = {one.name for one in fields(kind)}
    return {name: text for name, text in texts.items() if name in names}
