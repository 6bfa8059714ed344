"""Write help.json, the stored help and flags of every verb: `make help`."""

import json
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from unmask.cli import train
from unmask.cli.help import help_text, options
from unmask.cli.main import named_default, verbs
from unmask.cli.stored_help import FILE, FLAG
from unmask.diffusion.objective import OBJECTIVES
from unmask.model.backbone import BACKBONES
from unmask.registry import Registry
from unmask.training.optim import OPTIMIZERS

COMPONENTS: dict[str, Registry[Any]] = {  # flags that name a component, whose fields are flags too
    "--objective.name": OBJECTIVES,
    "--model.name": BACKBONES,
    "--optim.name": OPTIMIZERS,
}


def flags_of(module: ModuleType) -> list[str]:
    """Every flag of a verb, whichever components are chosen."""
    shown: set[str] = set()
    for arguments in component_choices(module):
        own, groups = options(module.Settings, named_default(module, arguments), "")
        lines = [line for group in (own, *(group for _, group in groups)) for line, _, _ in group]
        shown.update(flag for line in lines for flag in FLAG.findall(line.replace("[no-]", "")))
    return sorted(shown)


def component_choices(module: ModuleType) -> Iterator[list[str]]:
    """Command lines that name each component once, and one that names none."""
    yield []
    if module is train:
        for flag, registry in COMPONENTS.items():
            yield from ([flag, name] for name in registry)


def help_of_verbs() -> dict[str, dict[str, Any]]:
    """What the file should hold."""
    content = {}
    for verb in verbs():
        module = import_module(f"unmask.cli.{verb}")
        content[verb] = {"help": help_text(module, named_default(module, ["--help"])), "flags": flags_of(module)}
    return content


if __name__ == "__main__":
    FILE.write_text(json.dumps(help_of_verbs(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
