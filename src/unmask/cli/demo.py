"""Watch a story emerge out of masks and fill a blank; then train a tiny model for a minute and measure it.

Story and blank come from models in the package, the training text from every Python: the help topics of `pydoc`. Each
step is an ordinary command, which is shown before it runs.

    unmask demo
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from shutil import rmtree
from tempfile import mkdtemp

from rich.console import Console

from unmask.cli import main

BETWEEN = "<|endoftext|>"
HELD_OUT = 8  # topics: enough to evaluate the model on text it has not seen

BLANKS = "Lily went to the park with her mom. She saw a big [1] and [4]. Lily was very happy."
TRAINING = """--vocab 512 --length 64 --model.width 128 --model.blocks 4 --optim.lr 1e-2 --optim.ema 0.99
 --run.log-every 20 --run.eval-every 10000 --run.save-every 10000 --run.preview 0"""

NEXT = (
    ("unmask train --data YOUR_TEXTS/ --out runs/mine --minutes 10", "a model of your own text (docs/how/train.md)"),
    ("unmask serve stories", "the story model as an API and a web page (docs/how/serve.md)"),
    ("less docs/why/maths.md", "the method on one page"),
)


@dataclass(frozen=True)
class Settings:
    out: str = ""  # folder for the text and the model; empty: a temporary folder, removed at the end
    minutes: float = 1.0  # of training
    seed: int = 2  # random seed of the samples


def commands(folder: Path, settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """A title and a command for each step."""
    text, model, seed = str(folder / "topics"), str(folder / "model"), ["--seed", str(settings.seed)]
    training = [*shlex.split(TRAINING), "--minutes", f"{settings.minutes:g}"]
    story = ["--prompt", "Once upon a time", "--pace", "0.03", *seed]
    yield "A story emerges out of masks.", ["sample", "stories", *story]
    blank = ["infill", "stories-any-order", BLANKS, "--n", "3", *seed]
    yield "A blank is filled: the words on both sides count.", blank
    yield "A tiny model learns from the help topics of Python.", ["train", "--data", text, "--out", model, *training]
    yield "How well does it know topics it has not seen?", ["evaluate", model, f"{text}/valid.txt", "--passes", "4"]
    yield "After a minute it knows words, not yet sentences.", ["sample", model, "--length", "32", *seed]


def write_topics(folder: Path) -> None:
    """The help topics as two files of documents, for training and for validation."""
    folder.mkdir(parents=True)
    texts = [text.strip() for _, text in sorted(topics.items())]
    for name, part in (("train", texts[:-HELD_OUT]), ("valid", texts[-HELD_OUT:])):
        (folder / f"{name}.txt").write_text(f"\n{BETWEEN}\n".join(part), encoding="utf-8")


def run(settings: Settings) -> None:
    folder = Path(settings.out or mkdtemp(prefix="unmask-demo-"))
    with ExitStack() as held:
        if not settings.out:
            held.callback(rmtree, folder, ignore_errors=True)
        show(folder, settings, held)
    Console(highlight=False).rule("[bold]Next")
    for line, why in NEXT:
        print(f"{line:<64}{why}")
    if settings.out:
        print(f"{f'unmask sample {folder}/model':<64}the tiny model, which stays there")


def show(folder: Path, settings: Settings, held: ExitStack) -> None:
    """Run the commands one after another; what is held is let go at the end, unless a training was stopped."""
    console = Console(highlight=False)
    write_topics(folder / "topics")
    for what, command in commands(folder, settings):
        console.rule(f"[bold]{what}")
        console.print(f"$ unmask {shlex.join(command)}\n", style="dim", soft_wrap=True, markup=False)
        try:
            code = main.main(command)
        except SystemExit:  # a training that was stopped has said how to continue it, so its folder stays
            held.pop_all()
            raise
        if code:
            sys.exit(code)
        console.print()
