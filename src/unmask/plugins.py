"""Plugins: Python files of a user that register components, named by `--plugin FILE` or the variable UNMASK_PLUGINS.

They are imported with the first registry that is asked for a name, in worker processes too. A checkpoint records
their file names, so that an error can say which one is missing. It never has them run: only the user can.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from unmask.errors import UserError

FLAG, VARIABLE = "--plugin", "UNMASK_PLUGINS"


def take_plugins(arguments: Sequence[str]) -> list[str]:
    """A command line without its `--plugin FILE`; the files are added to the variable, for child processes too."""
    rest, files = [], plugin_files()
    words = iter(arguments)
    for word in words:
        if word == FLAG or word.startswith(f"{FLAG}="):
            name = word.partition("=")[2] or next(words, "")
            if not Path(name).is_file():
                raise UserError(f"{FLAG} takes a Python file that registers components; there is no file {name!r}.")
            files.append(str(Path(name).resolve()))
        else:
            rest.append(word)
    if files:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(files))
    return rest


def plugin_files() -> list[str]:
    return [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def plugin_names() -> list[str]:
    """The names of the files, without their folders."""
    return [Path(name).name for name in plugin_files()]


def load_plugins() -> None:
    """Import the files, each once."""
    for name in plugin_files():
        load_plugin(name)


@cache
def load_plugin(name: str) -> None:
    path = Path(name)
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{VARIABLE} names {name}, which is not a Python file.")
    if path.stem in sys.modules:
        raise UserError(f"the plugin {path.name} has the name of another module: rename it.")
    sys.modules[path.stem] = module = module_from_spec(spec)
    sys.path.append(str(path.parent))  # for what it imports itself, and for objects that go to other processes
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:  # any error of the user's own code
        raise UserError(f"the plugin {name} cannot be loaded: {error!r}.") from None
