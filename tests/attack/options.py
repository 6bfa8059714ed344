"""Command lines with odd numbers: an option or two of a verb are huge, negative, infinite or no number at all."""

import atexit
import os
import random
import re
import shutil
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp

import tiny
from confined import SECONDS, confined
from unmask.cli.main import main
from unmask.cli.stored_help import read_stored

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork

about = "command lines with odd numbers: obeyed or refused in words, within 1 GB"
usual = 1_000
tally: Counter[str] = Counter()  # command lines, by verb

ODD = ["-1", "0", "1", "3", "0.5", "1e-300", "nan", "inf", "-inf", "1e308", "²", "", "9" * 5_000]
HUGE = [str(10**9), str(10**12), str(2**31), str(2**63 - 1), str(2**63), str(2**64)]
COMMANDS = {  # each is small work, if nothing odd is asked
    "sample": "sample model --length 8",
    "infill": "infill model a[2]b",
    "evaluate": "evaluate model text.txt --rows 4",
    "quality": "quality model --n 2 --length 8",
    "report": "report run --samples 1",
    "train": "train --data text.txt --tokenizer character --length 16 --steps 2 --out new --model.width 16 "
    "--model.blocks 1 --model.heads 2 --optim.batch 4 --run.preview 0",
    "classify": "classify model reviews.csv --out tuned --steps 2",
    "prepare": "prepare text.txt --out shards --tokenizer character",
    "convert": "convert model other",
}


@cache
def base() -> Path:
    """A folder with a model, a run and texts, made once in a fork; the verbs are imported here."""
    for verb in COMMANDS:
        import_module(f"unmask.cli.{verb}")
    folder = Path(mkdtemp(prefix="attack-options-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def make() -> None:
        os.chdir(folder)
        tiny.checkpoint(folder / "model")
        (folder / "text.txt").write_text("".join(f"{'abcdefgh'[i % 8 :]} ab,cd\n" for i in range(200)))
        rows = [f"{'ab' if i % 3 else 'cd'},{'good' if i % 3 else 'bad'}\n" for i in range(40)]
        (folder / "reviews.csv").write_text("text,label\n" + "".join(rows))
        assert main([*COMMANDS["train"].replace("new", "run").split(), "--device", "cpu"]) == 0

    told = confined(make, seconds=120)
    assert told == "done", told
    return folder


@cache
def options(verb: str) -> list[str]:
    """The options of a verb that take a number."""
    return re.findall(r"^  (--[\w.-]+) (?:N|X)\b", read_stored()[verb]["help"], flags=re.MULTILINE)


def command_line(seed: int) -> list[str]:
    dice = random.Random(seed)
    verb = dice.choice(sorted(COMMANDS))
    words = COMMANDS[verb].split()
    for name in dice.sample(options(verb), dice.choice([1, 1, 2])):
        words += [name, dice.choice(dice.choice([ODD, HUGE]))]
    return words


def attempt(seed: int, folder: Path) -> str | None:
    words, home = command_line(seed), base()
    tally[words[0]] += 1

    def use() -> None:
        for path in home.iterdir():
            (folder / path.name).symlink_to(path)
        os.chdir(folder)
        code = main(words)
        assert code in (0, 2), f"code {code}"

    asked_much = any(word in HUGE for word in words)
    told = confined(use, seconds=5 if asked_much else SECONDS)
    if told == "done" or (asked_much and "s of CPU" in told):  # 10^12 steps take their time
        return None
    return f"{' '.join(words)[:200]}: {told[-800:]}"
