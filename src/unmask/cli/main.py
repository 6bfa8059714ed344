"""The command `unmask`: every module of this folder with a `Settings` class is a verb.

A verb is imported only when it is used, so that `unmask --help` answers at once. Its first docstring line is
its help; `Settings`, a frozen dataclass, becomes its command line; `run(settings)` does the work.
"""

import ast
import errno
import os
import re
import sys
from contextlib import nullcontext, redirect_stderr, suppress
from importlib import import_module
from io import StringIO, TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import tyro

from unmask import __version__
from unmask.cli.help import help_text
from unmask.cli.numbers import numbers
from unmask.errors import UserError, unknown

FOLDER = Path(__file__).parent
# Errors of the operating system that a user can mend: no room, no permission, a wrong path, too many open files.
OUTSIDE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE),
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EXDEV, errno.EBUSY, errno.ENXIO, errno.ENODEV),
}


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
    if any(argument in ("-h", "--help") for argument in rest):
        print(help_text(module, named_default(module, rest)))
        return 0
    try:
        settings = parsed(verb, rest)
    except SystemExit as stop:  # tyro has printed what is wrong with the command line
        return int(stop.code or 0)
    module.run(settings)
    return 0


def named_default(module: ModuleType, rest: list[str]) -> Any:
    """What a verb takes from a file or a component that the command line names; None: nothing."""
    return module.default(rest) if hasattr(module, "default") else None


def parsed(verb: str, rest: list[str]) -> Any:
    """The settings of a command line. What is wrong: a box in a terminal, and SystemExit; else an error."""
    module = import_module(f"unmask.cli.{verb}")
    known = named_default(module, rest)
    box = StringIO()
    try:
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(box):
            return tyro.cli(
                module.Settings,
                args=rest,
                prog=f"unmask {verb}",
                description=module.__doc__,
                registry=numbers(),
                **({} if known is None else {"default": known}),
            )
    except SystemExit:
        if not box.getvalue():
            raise
        raise UserError(unboxed(box.getvalue())) from None


def unboxed(text: str) -> str:
    """One line out of sections with rules of dashes between them, the first of which is a title."""
    sections = re.split(r"\n[\s-]*-{5,}[\s-]*\n", text)
    return "; ".join(" ".join(section.split()) for section in sections[1:])


def silence(stream: TextIO) -> None:
    """Let the interpreter end without writing what could not be written before."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(message: str) -> None:
    with suppress(OSError):  # standard error may be a file on the same full disk
        print(message, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run one command: exit code 0 for success, 2 for a user error, 130 for Ctrl-C.

    A disk that is full or read-only, a missing permission and the like are the user's to mend, wherever they show;
    any other error of the operating system is a bug and keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 gets \u2591 for a mask
    try:
        code = dispatch(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()  # here, and not at the end of the interpreter, where an error has no message
        return code
    except UserError as error:
        complain(f"unmask: {error}")
        return 2
    except KeyboardInterrupt:
        complain("unmask: stopped")
        return 130
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`unmask ... | head`), which is not an error.
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in OUTSIDE:
            raise
        place = f"{error.filename2 or error.filename}: " if error.filename else ""
        complain(f"unmask: {place}{error.strerror}.")
        silence(sys.stdout)
        return 2


if __name__ == "__main__":
    sys.exit(main())
