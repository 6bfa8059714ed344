"""Registries: components by name. A component is a frozen dataclass, its own setting, in its own file.

    @OBJECTIVES.register("mdlm")
    @dataclass(frozen=True)
    class MDLM(Objective): ...

The files of a registry's room are imported at the first lookup, so a new file needs no entry in a list. Other
packages add members through entry points, users with `--plugin FILE` (docs/how/extend.md). Components are written and
read as one line, `threshold:tau=0.8`, or as a table of a TOML file.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unmask.errors import UserError, unknown
from unmask.plugins import load_plugins

T = TypeVar("T")
MISSING_PLUGIN = " If a file of yours registers it, give --plugin FILE."


def derived(default: Any = MISSING, **options: Any) -> Any:
    """A field that is set from the data, the model or another setting, never by a user."""
    return field(default=default, metadata={"derived": True}, **options)


def own_fields(kind: type) -> list[str]:
    """The fields of a component that a user may set."""
    return [one.name for one in fields(kind) if one.init and not one.metadata.get("derived")]


def derived_fields(kind: type) -> list[str]:
    """The fields of a component that follow from something else; none for a class without fields."""
    return [one.name for one in fields(kind) if one.metadata.get("derived")] if is_dataclass(kind) else []


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A member: its class, with some fields preset where several names share a class."""

    name: str
    kind: type[T]
    about: str = ""  # one line for lists
    preset: Mapping[str, Any] = field(default_factory=dict)

    def make(self, **values: Any) -> T:
        return self.kind(**{**self.preset, **values})


class Registry(Generic[T]):
    """Members by name: from a room of this package, registered directly, or from entry points."""

    def __init__(
        self, kind: str, *, room: str = "", group: str = "", inline: bool = False, shares: bool = False
    ) -> None:
        self.kind, self.room, self.group = kind, room, group
        self.inline = inline  # written as one line in files, not as a table
        self.shares = shares  # a member in the place of another keeps the values of the fields that both have
        self.entries: dict[str, Entry[T]] = {}
        self.loaded = False

    def register(self, name: str, about: str = "", **preset: Any) -> Callable[[type], type]:
        """A decorator that adds a class under a name; of several on a class the top one gives its `name`."""

        def add(kind: type) -> type:
            if name in self.entries and self.entries[name].kind.__qualname__ != kind.__qualname__:
                raise UserError(f"two components are registered as the {self.kind} {name!r}: rename one of them.")
            self.entries[name] = Entry(name, kind, about, preset)
            kind.name, kind.registry = name, self  # type: ignore[attr-defined]
            return kind

        return add

    def load(self) -> None:
        """Import the files of the room, once."""
        if self.loaded:
            return
        self.loaded = True
        if self.room:
            room = import_module(self.room)
            for module in iter_modules(room.__path__, f"{self.room}."):
                import_module(module.name)
        load_plugins()

    @cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """Members that other installed packages offer, by name; looked for once, because it takes a while."""
        return {point.name: point for point in entry_points(group=self.group)} if self.group else {}

    def entry(self, name: str) -> Entry[T]:
        self.load()
        if name not in self.entries and name in self.plugins:
            self.adopt(name, self.plugins[name])
        if name not in self.entries:
            raise unknown(self.kind, name, self, hint=MISSING_PLUGIN if self.group else "")
        return self.entries[name]

    def adopt(self, name: str, point: EntryPoint) -> None:
        """Load a member of another package; a class that does not register itself is registered here."""
        try:
            plugin = point.load()
        except Exception as error:  # any error while another package is imported
            raise UserError(
                f"the {self.kind} {name!r} of the package {point.value} cannot be loaded: {error!r}."
            ) from None
        if name not in self.entries:
            self.register(name)(plugin)

    def __getitem__(self, name: str) -> type[T]:
        return self.entry(name).kind

    def __contains__(self, name: object) -> bool:
        self.load()
        return name in self.entries or name in self.plugins

    def __iter__(self) -> Iterator[str]:
        self.load()
        return iter(dict.fromkeys([*self.entries, *self.plugins]))

    def usual(self, name: str) -> T:
        """A member with its advised values, which may differ from the defaults of its class."""
        entry = self.entry(name)
        return entry.make(**getattr(entry.kind, "advice", {}))

    def turned(self, component: T, name: str) -> T:
        """The member of this name in the place of another."""
        made: Any = self.usual(name)
        both = set(own_fields(type(component))) & set(own_fields(type(made))) if self.shares else ()
        return replace(made, **{field: getattr(component, field) for field in both})

    def make(self, text: str, **values: Any) -> T:
        """A component from one line, `name` or `name:field=value,field=value`; `values` are set in addition."""
        name, _, rest = text.partition(":")
        entry = self.entry(name)
        given = written_fields(rest, entry.kind, f"{self.kind} {name!r}", preset=entry.preset)
        return entry.make(**{**values, **given})


def written_fields(text: str, kind: type, where: str, *, preset: Mapping[str, Any]) -> dict[str, Any]:
    """The values in `field=value,field=value`, each converted to the type of its field."""
    hints = get_type_hints(kind)
    known = [name for name in own_fields(kind) if name not in preset]
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_")
        if not equals:
            raise UserError(f"the {where} is written NAME:FIELD=VALUE,...; saw {part!r} without '='.")
        if name not in known:
            if not known:
                raise UserError(f"the {where} has no fields to set; saw {name!r}.")
            raise unknown(f"field of the {where}", name, known)
        values[name] = value_of(value, hints[name], f"{where}: {name}")
    return values


def value_of(text: str, kind: Any, where: str) -> Any:
    """A text as a value of a type: numbers, booleans, choices, none."""
    if get_origin(kind) in (Union, UnionType):
        kinds = get_args(kind)
        if NoneType in kinds and text.lower() in ("none", ""):
            return None
        kind = next(one for one in kinds if one is not NoneType)
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise unknown(f"choice for {where}", text, get_args(kind))
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{where} must be true or false; saw {text!r}.")
        return text.lower() == "true"
    try:
        return kind(text) if kind in (int, float, str) else text
    except ValueError:
        raise UserError(f"{where} must be {'a whole number' if kind is int else 'a number'}; saw {text!r}.") from None


def spell_component(component: Any) -> str:
    """A component as one line: its name, and the fields that differ from their defaults.

    >>> spell_component(LogLinear(eps=0))
    'log-linear:eps=0'
    """
    registry, kind = component.registry, type(component)
    names = [name for name, entry in registry.entries.items() if entry.kind is kind]
    name = next(
        (one for one in names if all(getattr(component, k) == v for k, v in registry.entries[one].preset.items())),
        component.name,
    )
    preset = registry.entries[name].preset
    defaults = {one.name: one.default for one in fields(kind)}
    words = [
        f"{field}={spell_value(getattr(component, field))}"
        for field in own_fields(kind)
        if field not in preset and getattr(component, field) != defaults[field]
    ]
    return f"{name}:{','.join(words)}" if words else name


def spell_value(value: Any) -> str:
    """A field's value in one line; 0 and 0.0 are spelled alike, because a line is read as either."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else str(value)
