"""Page: pictures, tables and records as one self-contained HTML file, light or dark."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


@dataclass(frozen=True)
class Frame:
    """A page within the page."""

    title: str
    html: str
    height: int  # in rem


@dataclass(frozen=True)
class Part:
    """A section of a page, shown in the order of these fields. Everything but the picture is escaped."""

    title: str = ""
    warnings: Sequence[str] = ()
    picture: str = ""  # an SVG element, as `figure.svg` makes it
    note: str = ""
    facts: Sequence[tuple[str, str]] = ()  # names and values
    head: Sequence[str] = ()  # of the table
    rows: Sequence[Sequence[str]] = ()
    frames: Sequence[Frame] = ()
    record: Mapping[str, Any] | None = None
    opened: bool = False  # whether the record is shown without a click

    @property
    def record_text(self) -> str:
        return json.dumps(self.record, indent=2, ensure_ascii=False, default=str)


def page(title: str, parts: Sequence[Part], *, about: str = "") -> str:
    """The whole file; with several parts, links to them come first."""
    return template().render(title=title, about=about, parts=parts)


@cache
def template() -> Template:
    environment = Environment(
        loader=PackageLoader("unmask", "views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
