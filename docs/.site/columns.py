"""Two columns in a docstring (`name   what it is`) become a list, so that the site does not run them together."""

import re
from typing import Any

import griffe

ENTRY = re.compile(r"^(?P<name>\w[\w, .=()]*?)\s{2,}(?P<text>\S.*)$")


class Columns(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if entry is not None:
            if not inside:
                lines.append("")
            names = ", ".join(f"`{name.strip()}`" for name in entry["name"].split(","))
            lines.append(f"- {names}: {entry['text']}")
            inside = True
        elif inside and line.startswith(" ") and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            if inside and line.strip():
                lines.append("")
            inside = False
            lines.append(line)
    return "\n".join(lines)
