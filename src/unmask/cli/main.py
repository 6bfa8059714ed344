"""The command `unmask`: every module of this folder with a `Settings` class is a verb, and stands in a group.

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
from unmask.cli.names import listed_names
from unmask.cli.numbers import numbers
from unmask.cli.stored_help import check_flags, stored_help
from unmask.errors import UserError, unknown
from unmask.plugins import take_plugins
from unmask.untrusted import printable

FOLDER = Path(__file__).parent
GROUPS = {  # what a person wants, and the verbs for it, the common ones first
    "Train a model": ("train", "prepare", "classify"),
    "Use a model": ("sample", "infill", "chat", "serve", "variants", "demo"),
    "Measure a model": ("evaluate", "quality", "frontier", "report", "study"),
    "Share a model": ("inspect", "convert", "push"),
}
RENAMED = {  # verbs of old, and what to type instead
    "animate": "unmask sample MODEL --film FILE.html, or unmask infill MODEL TEMPLATE --film FILE.html",
    "classifier": "unmask classify MODEL DATA --guide --out FOLDER",
    "compare": "unmask report A.json B.json",
    "doctor": "unmask inspect",
    "plot": "unmask report RUN RUN --out curves",
    "suite": "unmask evaluate MODEL --suite zero-shot",
}
COMPLETION = """_unmask() {{
  local words="{verbs}"
  if [ "$COMP_CWORD" -gt 1 ]; then
    words="$(unmask "${{COMP_WORDS[1]}}" --help 2>/dev/null | grep -o -e '--[a-z][a-z.-]*' | sort -u)"
  fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _unmask unmask"""  # for bash; in zsh after `autoload bashcompinit && bashcompinit`
# Errors of the operating system that a user can mend: no room, no permission, a wrong path, too many open files.
OUTSIDE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE),
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EXDEV, errno.EBUSY, errno.ENXIO, errno.ENODEV),
}


def verbs() -> dict[str, str]:
    """Every verb with the first line of its file, read without importing it, in the order of its group."""
    lines = {}
    for verb in (verb for group in GROUPS.values() for verb in group):
        tree = ast.parse((FOLDER / f"{verb}.py").read_text(encoding="utf-8"))
        lines[verb] = (ast.get_docstring(tree) or "").split("\n")[0]
    return lines


def usage() -> str:
    lines = [f"unmask {__version__}: masked diffusion language models", "", "usage: unmask VERB [options]"]
    about = verbs()
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {verb:<10} {about[verb]}" for verb in group)]
    return "\n".join([*lines, "", "`unmask VERB --help` explains a verb; `--sampler help` lists what a name may be."])


def answer_without_verb(arguments: list[str]) -> str | None:
    """What a command line that names no verb prints; None: it names one."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return usage()
    if arguments[0] == "--version":
        return f"unmask {__version__}"
    return COMPLETION.format(verbs=" ".join(verbs())) if arguments[0] == "--completion" else None


def dispatch(arguments: list[str]) -> int:
    arguments = take_plugins(arguments)
    if (text := answer_without_verb(arguments)) is not None:
        print(text)
        return 0
    verb, *rest = arguments
    if verb in RENAMED:
        raise UserError(f"`unmask {verb}` has another name now: {RENAMED[verb]}")
    if verb not in verbs():
        raise unknown("verb", verb, verbs())
    if any(word.endswith("help") for word in rest) and (names := listed_names(verb, rest)) is not None:
        print(names)
        return 0
    if (text := stored_help(verb, rest)) is not None:
        print(text)
        return 0
    check_flags(verb, rest)
    module = import_module(f"unmask.cli.{verb}")
    if any(argument in ("-h", "--help") for argument in rest):
        print(help_text(module, named_default(module, rest)))
        return 0
    try:
        settings = parse_settings(verb, rest)
    except SystemExit as stop:  # tyro has printed what is wrong with the command line
        return int(stop.code or 0)
    if not hasattr(settings, "place"):
        module.run(settings)
        return 0
    from unmask.processes.threads import watched_threads  # imports torch

    with watched_threads(lambda hint: complain(f"unmask: {hint}")):
        module.run(settings)
    return 0


def named_default(module: ModuleType, rest: list[str]) -> Any:
    """What a verb takes from a file or a component that the command line names; None: nothing."""
    return module.default(rest) if hasattr(module, "default") else None


def parse_settings(verb: str, rest: list[str]) -> Any:
    """The settings of a command line. What is wrong: a box in a terminal, and SystemExit; else an error."""
    module = import_module(f"unmask.cli.{verb}")
    rest = module.words(rest) if hasattr(module, "words") else rest
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
        raise UserError(unbox_message(box.getvalue())) from None


def unbox_message(text: str) -> str:
    """One line out of a box whose sections have rules between them, drawn or of dashes; the first is the title."""
    lines = "\n".join(line.strip("│| ") for line in text.splitlines())
    sections = re.split(r"^[╭╰─-].*[─-]{5}[╮╯]?$", lines, flags=re.MULTILINE)
    message = "; ".join(" ".join(section.split()) for section in sections[1:] if section.strip())
    # A check of our own, whose words suffice; and a number that is none, among the other types of its option.
    message = re.sub(r"^Error parsing \w+: (.*); For full helptext.*", r"\1", message)
    return re.sub(
        r"^Error parsing (--\S+): no type matching .*: ('.*?' is not a (?:whole )?number)\..*", r"\1: \2.", message
    )


def silence(stream: TextIO) -> None:
    """Let the interpreter end without writing what could not be written before."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(message: str) -> None:
    with suppress(OSError):  # standard error may be a file on the same full disk
        print(printable(message), file=sys.stderr, flush=True)


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
