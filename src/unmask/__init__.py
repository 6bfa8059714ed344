"""unmask: masked diffusion language models, with every number proven.

The public names, imported on first use so that `import unmask` stays light:

    unmask.UserError    what every mistake of a user becomes: what is wrong, what was seen, what to do
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "UserError": "unmask.errors",
}

__all__ = ["UserError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
