"""The command `unmask`: every module of this folder with a `Settings` class is a verb.

A verb is imported only when it is used, so that `unmask --help` answers at once. Its first docstring line is
its help; `Settings`, a frozen dataclass, becomes its command line; `run(settings)` does the work.
"""

import ast
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

import tyro

from unmask import __version__
from unmask.cli.help import help_text
from unmask.errors import UserError, unknown

FOLDER = Path(__file__).parent


def verbs() -> dict[str, str]:
    """Every verb with the first line of its file, read without importing it."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.ClassDef) and node.name == "Settings" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").split("\n")[0]
    return found


def usage() -> str:
    lines = [
        f"unmask {__version__}: masked diffusion language models",
        "",
        "usage: unmask VERB [options]",
        "",
    ]
    lines += [f"  {verb:<10} {help_line}" for verb, help_line in verbs().items()]
    return "\n".join([*lines, "", "`unmask VERB --help` explains a verb."])


def dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        print(f"unmask {__version__}")
        return 0
    verb, *rest = arguments
    if verb not in verbs():
        raise unknown("verb", verb, verbs())
    module = import_module(f"unmask.cli.{verb}")
    # A verb may take defaults from a file or a component that the command line names.
    known = module.default(rest) if hasattr(module, "default") else None
    if any(argument in ("-h", "--help") for argument in rest):
        print(help_text(module, known))
        return 0
    given = {} if known is None else {"default": known}
    try:
        settings = tyro.cli(module.Settings, args=rest, prog=f"unmask {verb}", description=module.__doc__, **given)
    except SystemExit as stop:  # tyro has printed what is wrong with the command line
        return int(stop.code or 0)
    module.run(settings)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run one command: exit code 0 for success, 2 for a user error, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 gets \u2591 for a mask
    try:
        return dispatch(sys.argv[1:] if arguments is None else arguments)
    except UserError as error:
        print(f"unmask: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("unmask: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`unmask ... | head`), which is not an error.
        sys.stderr.close()
        return 0


if __name__ == "__main__":
    sys.exit(main())
