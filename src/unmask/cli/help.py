"""`unmask VERB --help`: options in groups, one line each, with their defaults; examples at the end."""

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from unmask.registry import spell_component
from unmask.settings import help_of

WIDTH, LEFT, LONGEST = 118, 34, 96


def help_text(module: ModuleType, default: Any = None) -> str:
    """The help of a verb: what it does, its options, its examples (the indented lines of its docstring)."""
    title, _, rest = (module.__doc__ or "").strip().partition("\n")
    about, examples = split_docstring(rest)
    named, grouped = options(module.Settings, default, "")
    positional = " ".join(shown for shown, _, first in named if first)
    verb = module.__name__.rpartition(".")[2]
    lines = [f"usage: unmask {verb} {positional} [options]".replace("  ", " "), "", title, *about]
    for name, group in [("", named), *grouped]:
        lines += ["", f"{name}:" if name else "options:"] if group else []
        lines += [line for shown, text, _ in group for line in entry(shown, text)]
    return "\n".join([*lines, "", "examples:", *examples] if examples else lines)


def split_docstring(rest: str) -> tuple[list[str], list[str]]:
    """The prose of a docstring, and its examples: the lines that begin with a command."""
    about: list[str] = []
    examples: list[str] = []
    for line in textwrap.dedent(rest).strip().splitlines():
        example = line.strip().startswith(("unmask ", "torchrun "))
        (examples if example else about).append(f"  {line.strip()}" if example else line)
    while about and not about[-1].strip():
        about.pop()
    return ["", *about] if about else [], examples


Option = tuple[str, str, bool]  # how it is written, what it means, whether it is positional


Groups = list[tuple[str, list[Option]]]  # titles, each with its options


def options(kind: Any, default: Any, before: str, flat: bool = False) -> tuple[list[Option], Groups]:
    """The options of a dataclass, and of the dataclasses within it; `flat`: without their names as prefixes."""
    hints, texts = get_type_hints(kind, include_extras=True), help_of(kind)
    own: list[Option] = []
    groups: Groups = []
    for one in sorted(fields(kind), key=lambda one: one.name != "name" or not hasattr(kind, "shows")):
        hint, marks = unwrap_hint(hints[one.name])
        if tyro.conf.Suppress in marks:
            continue
        value = getattr(default, one.name) if default is not None else default_of(one)
        if is_dataclass(value) and not isinstance(value, type) and not is_line(value):
            below = flat or tyro.conf.OmitArgPrefixes in marks
            unnamed = below or any(getattr(mark, "name", None) == "" for mark in marks)
            inner, more = options(type(value), value, before if unnamed else f"{before}{one.name}.", below)
            groups += [(title_of(type(value)), inner), *more]
            continue
        first = tyro.conf.Positional in marks
        text = next((mark.help for mark in marks if getattr(mark, "help", None)), texts.get(one.name, ""))
        own.append((typed_form(one.name, hint, marks, before, first), text + usual(value, hint), first))
    return own, groups


def is_line(value: Any) -> bool:
    """Whether a component is written as one line, and so is one option."""
    return hasattr(value, "registry") and value.registry.inline


def unwrap_hint(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        more, others = unwrap_hint(inner)
        return more, (*marks, *others)
    return hint, ()


def typed_form(name: str, hint: Any, marks: tuple[Any, ...], before: str, first: bool) -> str:
    metavar = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), None)
    if first:
        return metavar or name.upper()
    flag = f"--{before}{name.replace('_', '-')}"
    aliases = next((mark.aliases for mark in marks if getattr(mark, "aliases", None)), ())
    if hint is bool and before and tyro.conf.FlagCreatePairsOff not in marks:
        flag = f"--{before}[no-]{name.replace('_', '-')}"
    flag = ", ".join([*aliases, flag])
    if hint is bool:
        return flag
    return f"{flag} {metavar or metavar_of(hint)}"


def metavar_of(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return metavar_of(next(one for one in get_args(hint) if one is not NoneType))
    if get_origin(hint) is Literal:
        names = "{" + ",".join(str(one) for one in get_args(hint) if one != "") + "}"
        return names if len(names) <= LONGEST else "NAME"  # `help` lists them
    if get_origin(hint) is tuple:
        return f"{metavar_of(get_args(hint)[0])} .."
    return {int: "N", float: "X", str: "TEXT", Path: "PATH"}.get(hint, "NAME[:FIELD=VALUE]")


def usual(value: Any, hint: Any) -> str:
    if value is MISSING or value is None or value is False or value == () or value == "":
        return ""
    if value is True:
        return " (on)"
    if hasattr(value, "registry"):
        return f" ({spell_component(value)})"
    return f" ({value:g})" if isinstance(value, float) else f" ({value})"


def default_of(one: Any) -> Any:
    if one.default is not MISSING:
        return one.default
    return MISSING if one.default_factory is MISSING else one.default_factory()


def title_of(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).strip().split("\n")[0].rstrip(".")


def entry(shown: str, text: str) -> Iterator[str]:
    """An option and what it means, in one line where it fits."""
    room = textwrap.wrap(text, WIDTH - LEFT) or [""]
    if len(shown) + 4 > LEFT and len(shown) + len(text) + 4 <= WIDTH:
        yield f"  {shown}  {text}"
        return
    if len(shown) + 4 > LEFT:
        yield f"  {shown}"
    else:
        yield f"  {shown:<{LEFT - 2}}{room.pop(0)}".rstrip()
    yield from (" " * LEFT + line for line in room)
