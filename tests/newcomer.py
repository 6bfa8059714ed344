"""What somebody new to unmask types, in a fresh clone: `make newcomer`. The first wrong result ends it with code 1.

The commands and the code are those of README.md and docs/, so that a page that misleads is found here. The clone
gets its own environment by `make demo`, which takes minutes. NEWCOMER_PYTHON=/path/to/python takes that interpreter
instead, with the clone's source; it needs unmask's dependencies.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from test_readme import ROOT, arguments_of, blocks, commands
from test_recipes import matches, rows_of

PATIENCE = 7200  # seconds for one command, on a busy machine


class Wrong(Exception):
    """A result that is not what the page promises."""


def check(holds: object, what: str) -> None:
    if not holds:
        raise Wrong(what)


@dataclass(frozen=True)
class Desk:
    """Where the newcomer works: a clone of the repository, a folder for files, and an environment with `unmask`."""

    clone: Path
    folder: Path
    env: dict[str, str]

    def typed(self, line: str) -> str:
        """What a command line prints on standard output."""
        ran = subprocess.run(
            line, shell=True, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=PATIENCE
        )
        check(ran.returncode == 0, f"{line}\nended with code {ran.returncode}:\n{ran.stderr[-2000:]}")
        return ran.stdout

    def line(self, page: str, begins: str) -> str:
        """The command of a page that begins so, without its comment."""
        found = [line for line in commands(self.clone / page) if line.startswith(begins)]
        check(found, f"{page} has no command that begins with {begins!r}")
        return shlex.join(shlex.split(found[0], comments=True))

    def code(self, page: str, holding: str) -> str:
        """The Python of a page that holds some text."""
        found = [code for language, code in blocks(self.clone / page) if language == "python" and holding in code]
        check(found, f"{page} has no Python with {holding!r}")
        return found[0]

    def python(self, code: str) -> str:
        (self.folder / "typed.py").write_text(code, encoding="utf-8")
        return self.typed("python typed.py")


@contextmanager
def desk() -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="unmask-newcomer-") as name:
        clone, folder, scripts = (Path(name) / part for part in ("unmask", "work", "bin"))
        subprocess.run(
            ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", str(ROOT), str(clone)], check=True
        )
        folder.mkdir()
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        if python := os.environ.get("NEWCOMER_PYTHON"):
            scripts.mkdir()
            for command, words in (("python", ""), ("unmask", "-m unmask")):
                (scripts / command).write_text(f'#!/bin/sh\nexec {shlex.quote(python)} {words} "$@"\n')
                (scripts / command).chmod(0o755)
            env["PYTHONPATH"] = str(clone / "src")
        else:
            scripts = clone / ".venv" / "bin"
        env["PATH"] = os.pathsep.join([str(scripts), env["PATH"]])
        yield Desk(clone, folder, env)


def installed(at: Desk) -> str:
    """`make demo`, or the given interpreter; either way it is the clone that runs."""
    if "PYTHONPATH" not in at.env:
        at.typed(f"make -C {shlex.quote(str(at.clone))} demo")
    where = at.python("import unmask; print(unmask.__file__)").strip()
    check(Path(where).is_relative_to(at.clone), f"the clone is not what runs, but {where}")
    return at.typed("unmask --version").strip()


def served(at: Desk) -> str:
    """A server answers /health, a completion, and the infill that docs/how/serve.md sends with curl."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = at.line("README.md", "unmask serve stories") + f" --port {port}"
    address = f"http://127.0.0.1:{port}"
    with (at.folder / "server.log").open("w") as log:
        server = subprocess.Popen(shlex.split(line), cwd=at.folder, env=at.env, stdout=log, stderr=log)
    try:
        end = time.monotonic() + PATIENCE
        curl = ["curl", "--silent", "--fail", f"{address}/health"]
        while subprocess.run(curl, capture_output=True).returncode:
            said = (at.folder / "server.log").read_text()
            check(server.poll() is None and time.monotonic() < end, f"{line}\ndoes not serve:\n{said}")
            time.sleep(0.2)
        asked = json.dumps({"model": "stories", "prompt": "Once upon a time", "max_tokens": 16})
        answer = at.typed(
            f"curl --silent --fail {address}/v1/completions -H 'Content-Type: application/json' -d '{asked}'"
        )
        text = json.loads(answer)["choices"][0]["text"]
        check(text.strip(), f"an empty completion: {answer}")
        steps = at.typed(at.line("docs/how/serve.md", "curl -N").replace("http://127.0.0.1:8000", address))
        check("event: end" in steps, f"the stream has no end: {steps[-500:]}")
    finally:
        server.terminate()
        server.wait(60)
    return f"Once upon a time{text}"


def trained(at: Desk) -> str:
    """A model of a folder of texts, in a minute; it samples and fills blanks."""
    (at.folder / "my_texts").mkdir()
    for page in sorted(at.clone.glob("docs/how/*.md")):
        shutil.copy(page, at.folder / "my_texts" / f"{page.stem}.txt")
    line = at.line("README.md", "unmask train --data my_texts/")
    check("--minutes 10" in line, f"README's own training names no minutes: {line}")
    at.typed(line.replace("--minutes 10", "--minutes 1"))
    drawn = [
        json.loads(one)["text"]
        for one in at.typed(at.line("README.md", "unmask sample runs/mine") + " --json").splitlines()
    ]
    check(len({*drawn}) == 3, f"three different samples were asked for: {drawn}")
    line = at.line("README.md", "unmask infill runs/mine")
    filled = json.loads(at.typed(line + " --json").splitlines()[0])["text"]
    template = (arguments_of(line) or [])[2]
    check(matches(template, filled), f"{template!r} became {filled!r}")
    steps = json.loads((at.folder / "runs/mine/metrics.jsonl").read_text().splitlines()[-1])
    return f"{steps.get('step')} steps: {filled}"


def infilled(at: Desk) -> str:
    """The CSV of docs/recipes/products.md, filled by the newcomer's own model."""
    page = "docs/recipes/products.md"
    at.python(at.code(page, 'open("blanks.csv", "w"'))
    at.python(at.code(page, "unmask.infill").replace("runs/products", "runs/mine"))
    given, filled = (rows_of(at.folder / name) for name in ("blanks.csv", "filled.csv"))
    check(len(given) == len(filled) > 0, f"{len(given)} rows became {len(filled)}")
    for before, after in zip(given, filled, strict=True):
        check(before["name"] == after["name"], f"{before} became {after}")
        check(matches(before["description"], after["description"]), f"{before} became {after}")
    return filled[0]["description"]


def constrained(at: Desk) -> str:
    """Every sample under a pattern matches it."""
    line = at.line("docs/recipes/json.md", 'unmask sample stories --prompt "There was a girl') + " --json"
    words = shlex.split(line)
    prompt, pattern = (words[words.index(flag) + 1] for flag in ("--prompt", "--pattern"))
    drawn = [json.loads(one)["text"] for one in at.typed(line).splitlines()]
    check(len(drawn) == int(words[words.index("--n") + 1]), f"{len(drawn)} samples from {line}")
    for text in drawn:
        check(re.fullmatch(pattern, text.removeprefix(prompt), re.ASCII), f"{text!r} does not match {pattern}")
    return drawn[0]


def own_sampler(at: Desk) -> str:
    """The sampler of docs/how/extend.md, as an object."""
    page = "docs/how/extend.md"
    (at.folder / "my_sampler.py").write_text(at.code(page, "# sampler: my_sampler.py"), encoding="utf-8")
    law, *_, text = at.python(at.code(page, "from my_sampler import")).splitlines()
    check(law.startswith("approximate (from right to left)"), f"the law is {law!r}")
    check(matches("Lily saw a big [3].", text), f"the infill is {text!r}")
    return law


def own_objective(at: Desk) -> str:
    """The objective of docs/how/extend.md trains a model, and the checkpoint knows it."""
    page = "docs/how/extend.md"
    (at.folder / "my_objective.py").write_text(at.code(page, "# objective: my_objective.py"), encoding="utf-8")
    words = arguments_of(at.line(page, "unmask train --data my_texts/ --out runs/mlm"))
    begin = "import my_objective\nimport unmask\nfrom unmask.cli.main import main\n"
    run = f"assert main({[*(words or []), '--minutes', '0.2']!r}) == 0\n"
    said = at.python(begin + run + 'print(unmask.load("runs/mlm").objective.name)\n').splitlines()[-1]
    check(said == "masked-lm", f"the checkpoint's objective is {said!r}")
    return said


STATIONS = (installed, served, trained, infilled, constrained, own_sampler, own_objective)


def main() -> int:
    with desk() as at:
        for station in STATIONS:
            begun = time.monotonic()
            try:
                seen = station(at)
            except (Wrong, subprocess.TimeoutExpired) as error:
                print(f"{station.__name__:14s} WRONG after {time.monotonic() - begun:.0f} s: {error}", flush=True)
                return 1
            print(f"{station.__name__:14s} {time.monotonic() - begun:6.1f} s  {seen[:90]!r}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
