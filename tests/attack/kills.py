"""Kills: a tiny run or preparation dies by kill -9, once or twice, is resumed, and compared with one that lived.

    python tests/attack/long.py kills --tries 1000      # at random times and before random file operations
    python tests/attack/kills.py warm                   # before every file operation, in turn
    python tests/attack/kills.py warm --every 7 --first 3

Every try is a fork of one warm process, which takes a second or two, and every kill is a real one. What is compared:
all files and links of the folder (weights, moments, curves, tokens), but for the seconds that steps took.
"""

import argparse
import atexit
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads of its own cannot be forked
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(Path(__file__).parent.parent))

import tiny
from studies.tiny_study import written
from training.small import Chain
from unmask import settings as toml
from unmask.cli import prepare, train
from unmask.cli.flags import with_flags
from unmask.cli.main import main as main_of_unmask
from unmask.diffusion.objective import OBJECTIVES
from unmask.errors import UserError
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.shards import Division
from unmask.training import log
from unmask.training.settings import Train

about = "kill -9 of train, prepare, classify and study at random moments, then resumed and compared"
usual = 1000
tally: Counter[str] = Counter()  # kills that met a living process, by job

NEVER = 1 << 30
TIMES = {"seconds", "train_seconds", "date", "time"}
# Files that no two runs share: logs, what has the seconds of a table in it, and notes for this machine alone.
UNLIKE = {"log", "log.txt", "operations", ".verified.json", "table.md", "table.html", "table.png", ".lock"}
TEXT, OUT = "text.txt", "run"  # in the folder of a try
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SMALL: dict[str, Any] = {
    "data": TEXT,
    "out": OUT,
    "steps": 10,
    "text": {"tokenizer": "character", "documents": "line", "length": 16, "valid": 0.1, "pack": "stream"},
    "model": {"width": 16, "blocks": 1, "heads": 2},
    "optim": {"batch": 8, "warmup": 2},
    "run": {"log_every": 2, "save_every": 4, "eval_every": 3, "eval_rows": 8, "preview": 0},
}


def trained(**changes: Any) -> None:
    asked = toml.merge_settings(toml.merge_settings(Train(), SMALL), changes)
    train.run(train.Settings(resume=True, train=with_flags(asked)))


def trained_with(backbone: str, objective: str = "mdlm", pack: str = "stream", **sizes: int) -> None:
    """A network of another kind than the usual one."""
    asked = {**SMALL, "recipe": "plain", "objective": {"name": objective}, "model": {"name": backbone, **sizes}}
    asked["text"] = {**SMALL["text"], "pack": pack}
    train.run(train.Settings(resume=True, train=with_flags(toml.merge_settings(Train(), asked))))


def adapted() -> None:
    """Small matrices beside the weights of another checkpoint."""
    trained(recipe="plain", init="model", text={"tokenizer": "auto"}, adapter={"rank": 2, "dropout": 0.1})


def prepared(out: str = OUT) -> None:
    layout, division = FileLayout("line"), Division(valid=0.2, characters=900)
    asked = prepare.Settings(
        source=(TEXT,), out=out, tokenizer="character", layout=layout, division=division, workers=1
    )
    prepare.run(asked)


def trained_on_shards() -> None:
    """Both commands, as a job script has them."""
    prepared("shards")
    trained(data="shards", recipe="plain", optim={"name": "adamw"}, objective={"name": "sedd"})


def commanded(*words: str) -> None:
    """A command line, in this process."""
    code = main_of_unmask(list(words))
    if code:
        raise UserError(f"`unmask {' '.join(words)}` ended with code {code}")


def classified() -> None:
    """Two seeds of a classifier on a tiny model."""
    options = ["--seeds", "2", "--epochs", "2", "--batch", "8", "--device", "cpu", "--resume"]
    commanded("classify", "model", "reviews.csv", "--out", OUT, *options)


def studied() -> None:
    """Two rows, each trained and measured, and their table."""
    path = written(Path("files"))
    commanded("study", str(path), "--out", OUT, "--data-root", "files", "--jobs", "0")


JOBS: dict[str, Callable[[], None]] = {
    "classify": classified,
    "study": studied,
    "warm": lambda: trained(recipe="warm", warm={"share": 0.4, "anneal": 2}),
    "adapter": adapted,
    "rows": lambda: trained(recipe="plain", model={"dropout": 0.1}, text={"pack": "rows"}),
    "shards": trained_on_shards,
    "prepare": prepared,
    **{f"train {name}": partial(trained, recipe="plain", objective={"name": name}) for name in sorted(OBJECTIVES)},
    "train with mamba": lambda: trained_with("mamba", "ar", width=16, blocks=1),
    "train with transformer-xl": lambda: trained_with("transformer-xl", "ar", width=16, blocks=1, heads=2),
    "train with bert": lambda: trained_with("bert", pack="wrap", width=16, blocks=1, heads=2),
}
OFTEN = {"classify": 4, "study": 4, "train plaid": 4}  # chosen so many times as often as others: what failed before


class Kill(NamedTuple):
    """When a process dies: before one of its file operations, or after some seconds."""

    operation: int = NEVER
    seconds: float | None = None


class Ended(NamedTuple):
    """How a process ended."""

    killed: bool
    code: int
    said: str
    operations: int


NOT_AT_ALL = Kill()


def lived(job: str, folder: Path, kill: Kill = NOT_AT_ALL) -> Ended:
    """Do a job in a process of its own, in a folder, until it ends or is killed."""
    log, counted = folder / "log", folder / "operations"
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os.chdir(folder)
            operations = armed(kill.operation)
            JOBS[job]()
            code = 0
            counted.write_text(str(operations()))
        except UserError as error:
            os.write(2, f"refused: {error}\n".encode())
            code = 2
        except BaseException as error:
            os.write(2, f"died of {error!r}\n".encode())
        finally:
            os._exit(code)
    if kill.seconds is not None:
        time.sleep(max(0.0, kill.seconds - (time.monotonic() - began)))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    tally[job] += code == -signal.SIGKILL
    operations = int(counted.read_text()) if code == 0 else 0
    return Ended(code == -signal.SIGKILL, code, log.read_text() if log.exists() else "", operations)


def armed(fatal: int) -> Callable[[], int]:
    """Die before the file operation of this number; returns a function that tells how many there were.

    A file that is opened for writing counts twice: before it is opened, and when it is open and still empty.
    """
    done = count(1)
    last = 0

    def one_more(first: Callable[[], object] = lambda: None) -> None:
        nonlocal last
        last = next(done)
        if last == fatal:
            first()
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if last >= fatal:
            return
        if event in CHANGES:
            one_more()
        elif event == "open" and arguments[2] & WRITES and not isinstance(arguments[0], int):
            one_more()
            one_more(lambda: os.open(arguments[0], arguments[2] & ~os.O_EXCL))

    def fsync(handle: int) -> None:
        one_more()
        real(handle)

    real, os.fsync = os.fsync, fsync
    sys.addaudithook(hook)
    return lambda: last


def picture(folder: Path) -> dict[str, Any]:
    """Everything that a job has made, in a form to be compared."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "folder"
        elif path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{key: line[key] for key in line if key != "seconds"} for line in lines]
        elif path.suffix == ".json" and path.name != ".verified.json":
            found[name] = without_times(
                json.loads(path.read_text()), {"sha256"} if path.name == "training.json" else set()
            )
        elif path.name not in UNLIKE and path.suffix != ".lock":
            found[name] = sha256(path.read_bytes()).hexdigest()
    return found


def without_times(value: Any, others: set[str]) -> Any:
    """Plain values without those that depend on the clock, at any depth, and `others` at the top."""
    if isinstance(value, dict):
        return {key: without_times(one, set()) for key, one in value.items() if key not in TIMES | others}
    return [without_times(one, set()) for one in value] if isinstance(value, list) else value


@cache
def whole(job: str) -> tuple[dict[str, Any], int, float]:
    """What a job makes that nobody kills, in how many file operations and how many seconds."""
    warm(job)
    folder = begun(place())
    began = time.monotonic()
    ended = lived(job, folder)
    seconds = time.monotonic() - began
    assert ended.code == 0, ended.said
    return picture(folder), ended.operations, seconds


@cache
def place() -> Path:
    """The one folder of all jobs: some files hold its path."""
    folder = tempfile.TemporaryDirectory(prefix="attack-kills-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def warm(job: str) -> None:
    """Do a job once in this process, so that forks need not import or compile what it uses."""
    log.matrix_rate = lambda: 1e9  # type: ignore[attr-defined]  # the rate is only shown
    here, outputs = os.getcwd(), (os.dup(1), os.dup(2))
    with tempfile.TemporaryDirectory() as name, open(os.devnull, "w") as nowhere:
        try:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            os.chdir(begun(Path(name)))
            JOBS[job]()
        finally:
            os.chdir(here)
            for number, output in enumerate(outputs, 1):
                sys.stdout.flush()
                os.dup2(output, number)
                os.close(output)


def begun(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rows = Chain.make().rows(120, 0).tolist()
    (folder / TEXT).write_text("\n".join("".join(chr(97 + i) for i in row) for row in rows))
    lines = [f"{'ab' if i % 3 else 'cd'}{'efgh'[i % 4]},{'good' if i % 3 else 'bad'}\n" for i in range(40)]
    (folder / "reviews.csv").write_text("text,label\n" + "".join(lines))
    tiny.checkpoint(folder / "model")
    return folder


def attempt(seed: int, _: Path) -> str | None:
    dice = random.Random(seed)
    job = dice.choices(sorted(JOBS), [OFTEN.get(name, 1) for name in sorted(JOBS)])[0]
    _, operations, seconds = whole(job)
    kills = [
        Kill(operation=dice.randint(1, operations)) if dice.random() < 0.5 else Kill(seconds=dice.uniform(0, seconds))
        for _ in range(dice.choice([1, 2]))
    ]
    return killed(job, *kills)


def killed(job: str, *kills: Kill) -> str | None:
    """What is wrong with a job that was killed and resumed: it cannot be, or the result is another one."""
    told = whole(job)[0]
    folder = begun(place())
    for kill in kills:
        ended = lived(job, folder, kill)
        if ended.code not in (0, -signal.SIGKILL):
            return f"{job}, {kills}: code {ended.code}: {ended.said[-600:]}"
    ended = lived(job, folder)
    if ended.code:
        return f"{job}, {kills}: cannot be resumed, code {ended.code}: {ended.said[-600:]}"
    seen = picture(folder)
    wrong = sorted(name for name in told.keys() | seen.keys() if told.get(name) != seen.get(name))
    return f"{job}, {kills}: not as if it had lived: {', '.join(wrong[:6])}" if wrong else None


def sweep(job: str, *, every: int = 1, first: int = 1) -> list[str]:
    """Kill a job before every n-th of its file operations; what went wrong."""
    failures = []
    for number in range(first, whole(job)[1] + 1, every):
        told = killed(job, Kill(operation=number))
        if told is not None:
            failures.append(told)
            print(told, flush=True)
        if number % 50 < every:
            print(f"{job}: {number} of {whole(job)[1]} file operations, {len(failures)} failed", flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a job before every file operation.")
    parser.add_argument("jobs", nargs="+", choices=sorted(JOBS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    asked = parser.parse_args()
    failed = 0
    for job in asked.jobs:
        failures = sweep(job, every=asked.every, first=asked.first)
        tries = len(range(asked.first, whole(job)[1] + 1, asked.every))
        print(f"{job}: {whole(job)[1]} file operations, killed before {tries}, {tries - len(failures)} survived")
        failed += len(failures)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
