"""Help and flags of every verb, stored beside the code: `unmask VERB --help` and a mistyped flag need no torch.

The settings of a verb are the components themselves, so reading them imports torch: two seconds for a page of text.
`make help` writes help.json from the settings (tests/write_help.py), and a test compares the two. Where components of
a user's own could add flags (plugins, other packages), nothing stored is used.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from unmask.errors import UserError, nearest
from unmask.plugins import plugin_files

FILE = Path(__file__).with_name("help.json")
FLAG = re.compile(r"--[a-z][a-z0-9._-]*")


@cache
def read_stored() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def has_extensions() -> bool:
    """Whether plugins or other packages may have added components."""
    return bool(plugin_files()) or any(group.startswith("unmask.") for group in entry_points().groups)


def stored_help(verb: str, rest: Sequence[str]) -> str | None:
    """The help of a verb; None: the command line says more, so that the help may be another."""
    asked_only = all(argument in ("-h", "--help") for argument in rest)
    return str(read_stored()[verb]["help"]) if rest and asked_only and not has_extensions() else None


def check_flags(verb: str, rest: Sequence[str]) -> None:
    """Refuse a flag that no settings of the verb have, with the nearest one."""
    known = read_stored()[verb]["flags"]
    for argument in rest:
        name = argument.partition("=")[0]
        if not FLAG.fullmatch(name) or name.startswith("--tyro-") or is_known(name, known) or name == "--help":
            continue
        if has_extensions():
            return
        near = nearest(name, known)
        guess = f" Did you mean {near}?" if near else ""
        raise UserError(f"`unmask {verb}` has no option {name}.{guess} `unmask {verb} --help` lists them.")


def is_known(flag: str, known: Sequence[str]) -> bool:
    """Whether there is such a flag: with dashes or underlines, and for a switch with a `no-` that turns it off."""
    dashed = flag.replace("_", "-")
    return dashed in known or re.sub(r"^(--(?:[a-z0-9-]+\.)*)no-", r"\1", dashed) in known
