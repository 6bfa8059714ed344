"""Damaged and hostile classifiers: `classify --predict` and guided sampling answer, or refuse them in words."""

import atexit
import contextlib
import csv
import io
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from attack.checkpoints import ODD, byte_damage, changed, data_of, header_damage, put, spelled
from confined import confined
from tiny import checkpoint
from unmask.cli.main import main
from unmask.files import fingerprint

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork

about = "classifiers with mutated notes and heads: used or refused in words, within 20 s of CPU and 1 GB"
usual = 2_000
tally: Counter[str] = Counter()  # damaged folders, by kind of classifier

MODEL, TEXTS = "model", "texts.csv"
HEAD = "head.safetensors"
# Values that a note may claim: lengths, numbers of labels and names that fit no head.
CLAIMS: list[Any] = [
    *ODD,
    10**9,
    2**62,
    [""] * 100_000,
    ["a", "a"],
    ["a"] * 65,
    ["\x1b]0;x\x07", "=1+1"],
    ["x" * 100_000, "y"],
    {"length": 10**9, "pool": "padded"},
]


@cache
def bases() -> Path:
    """A classifier of two labels, one of numbers and one that guides, made once in a fork."""
    folder = Path(tempfile.mkdtemp(prefix="attack-classifiers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    rows = [(f"{'ab' if i % 3 else 'cd'}{'efgh'[i % 4]}", "good" if i % 3 else "bad", i / 10) for i in range(40)]

    def make() -> None:
        checkpoint(folder / MODEL)
        for name, column in (("labels", 1), ("numbers", 2)):
            with (folder / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("text", "label"), *((row[0], row[column]) for row in rows)])
        options = ["--epochs", "1", "--batch", "8", "--device", "cpu"]
        for name, more in (("labels", []), ("numbers", ["--number"]), ("guide", ["--guide"])):
            run, data = folder / f"run-{name}", folder / ("numbers.csv" if name == "numbers" else "labels.csv")
            command = ["classify", folder / MODEL, data, "--out", run, *options, *more]
            assert main([str(part) for part in command]) == 0
            shutil.move((run / "best").resolve(), folder / name)
        (folder / TEXTS).write_text("text\nab c\n" + '"a,\nb"\n' + "abc " * 100 + "\n")

    made = confined(make, seconds=120)
    assert made == "done", made
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for command in (predicting(folder, folder / "labels"), guided(folder, folder / "guide")):
            assert main(command) == 0  # what is imported here need not be in every fork
    return folder


def attempt(seed: int, folder: Path) -> str | None:
    """One damaged classifier; what went wrong, or None."""
    dice = random.Random(seed)
    kind = dice.choice(("labels", "labels", "numbers", "guide"))
    tally[kind] += 1
    target = folder / kind
    shutil.copytree(bases() / kind, target)
    before = fingerprint(target / HEAD)
    done = [dice.choice(DAMAGES)(dice, target) for _ in range(dice.choice((1, 1, 2)))]
    if dice.random() < 0.7:
        sign(target, before)

    def use() -> None:
        code = main(guided(bases(), target) if kind == "guide" else predicting(bases(), target))
        assert code in (0, 2), f"exit code {code}"

    told = confined(use)
    return f"{kind}: {'; '.join(done)}\n{told}" if told.startswith("failed") else None


def predicting(base: Path, target: Path) -> list[str]:
    """The command in which a classifier answers three texts."""
    answers = str(target.parent / "answers.csv")
    return ["classify", str(target), str(base / TEXTS), "--predict", "--out", answers, "--device", "cpu"]


def guided(base: Path, target: Path) -> list[str]:
    """The command in which a classifier guides a sample."""
    options = ["--length", "8", "--classifier-label", "good", "--device", "cpu"]
    return ["sample", str(base / MODEL), "--classifier", str(target), *options]


def sign(target: Path, before: str) -> None:
    """Put the damaged head's sha256 into the notes, so that the checks after it are reached."""
    if (target / HEAD).is_file():
        now = fingerprint(target / HEAD)
        for path in target.glob("*.json"):
            if (data := data_of(path)) is not None:
                put(path, data.replace(before.encode(), now.encode()))


def note_damage(dice: random.Random, target: Path) -> str:
    """A claim of the author's choice in the classifier's own note."""
    path = target / dice.choice([name for name in ("classify.json", "classifier.json") if (target / name).exists()])
    try:
        content = json.loads(data_of(path) or b"")
    except (ValueError, RecursionError):
        return byte_damage(dice, target)
    if dice.random() < 0.5 or not isinstance(content, dict) or not content:
        content, told = changed(dice, content)
    else:
        holder = dice.choice([content, *(part for part in content.values() if isinstance(part, dict) and part)])
        key = dice.choice(sorted(holder))
        holder[key] = claim = dice.choice(CLAIMS)
        told = f"{key} = {claim!r:.60}"
    put(path, spelled(content).encode())
    return f"{path.name} {told}"


DAMAGES = [note_damage, note_damage, note_damage, header_damage, byte_damage]
