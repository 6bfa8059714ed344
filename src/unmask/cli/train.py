"""Train a model on your own texts.

The default is the best recipe we have measured; configs/ has the paper's. --minutes chooses network and steps.

    unmask train --data my_texts/ --out runs/mine --minutes 10
    unmask train --data pairs.csv --given question --answer text --out runs/answers
    unmask train --data my_texts/ --out runs/poems --init stories --adapter.rank 8
    unmask train --data stories.txt:3 poems.jsonl:1 --out runs/mixed
    torchrun --nproc-per-node 8 -m unmask train --data data/ --out runs/big --run.parallel fsdp
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from unmask import settings as toml
from unmask.cli.flags import with_flags, without_flags
from unmask.diffusion.objective import OBJECTIVES
from unmask.model.backbone import BACKBONES
from unmask.training import machines
from unmask.training.fit import Order
from unmask.training.folder import stored_settings
from unmask.training.log import Lines, Screen
from unmask.training.loop import Progress
from unmask.training.optim import OPTIMIZERS
from unmask.training.run import run as train
from unmask.training.settings import Text, Train, settle_training


@dataclass(frozen=True)
class Settings:
    """The command line: the settings of a run, and where to read others from."""

    config: str = ""  # TOML file of settings; flags override it
    minutes: float = 0.0  # choose network, batch and steps for about this time; 0: the settings below
    resume: bool = False  # continue the run in --out
    plan: str = ""  # print the cost of the run on other machines, such as 64xH100, and run nothing
    named: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()  # names of the settings that flags or the file give
    train: Annotated[Train, tyro.conf.arg(name="")] = field(default_factory=Train)


def words(arguments: list[str]) -> list[str]:
    """The command line with the places of a mixture, `--data a.txt:3 b.jsonl:1`, as one word."""
    if "--data" not in arguments:
        return arguments
    first = arguments.index("--data") + 1
    last = next((i for i in range(first, len(arguments)) if arguments[i].startswith("--")), len(arguments))
    return [*arguments[:first], *([" ".join(arguments[first:last])] if last > first else []), *arguments[last:]]


def default(arguments: list[str]) -> Settings:
    """The settings before the flags: those of a run to resume or of --config, and the components that flags name."""
    config, out = option(arguments, "--config"), option(arguments, "--out")
    asked = toml.read_toml(config, Train()) if config else Train()
    out = out or asked.out
    if "--resume" in arguments and out and (stored := stored_settings(out)) is not None:
        asked = replace(toml.read_toml(stored, Train()), out=out)
    for field_name, registry in (("objective", OBJECTIVES), ("model", BACKBONES), ("optim", OPTIMIZERS)):
        name, now = option(arguments, f"--{field_name}.name"), getattr(asked, field_name)
        if name and name != now.name:
            asked = replace(asked, **{field_name: registry.turned(now, name)})  # type: ignore[arg-type]
    given = {*flags_in(arguments), *(toml.names_in(config) if config else ())}
    return Settings(config=config, named=tuple(sorted(given)), train=with_flags(asked))


def flags_in(arguments: list[str]) -> set[str]:
    """The names of the settings that flags give: --run.eval-every 10 gives run.eval_every."""
    flags = (argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
    names = {flag.removeprefix("--").replace("-", "_") for flag in flags}
    return {f"text.{name}" if hasattr(Text, name) else name for name in names}


def option(arguments: list[str], name: str) -> str:
    """The value of an option, read before the command line is parsed as a whole."""
    for i, argument in enumerate(arguments):
        if argument == name and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return ""


def run(settings: Settings) -> None:
    if settings.plan:
        return print_plan(settings)
    for _ in steps(settings):
        pass


def print_plan(settings: Settings) -> None:
    asked = settle_training(without_flags(settings.train))
    vocab = machines.vocabulary_size(asked.text)
    count, device = machines.read_devices(settings.plan)
    for line in machines.plan_lines(machines.plan_run(asked, count, device, vocab=vocab), device, vocab=vocab):
        print(line)


def steps(settings: Settings) -> Iterator[Progress]:
    order = Order(without_flags(settings.train), settings.resume, settings.minutes, settings.named)
    number = yield from train(order, screen())
    if number:
        sys.exit(128 + number)


class LiveBar:
    """A bar at the bottom of a terminal, with the latest numbers; lines stay above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        texts = ("{task.completed:.0f}/{task.total:.0f}", "{task.fields[left]}", "{task.fields[now]}")
        self.bar = Bar(TextColumn("{task.description}"), BarColumn(), *map(TextColumn, texts), console=console)
        self.task = self.bar.add_task("", total=0, now="", left="")

    def say(self, line: str) -> None:
        self.console.print(line, markup=False)

    def advance(self, step: int, total: int, name: str, numbers: Sequence[str]) -> None:
        learned, _, speed, left = numbers
        self.bar.update(self.task, now="  ".join((learned, speed)))
        self.tick(step, total, name, left)

    def tick(self, step: int, total: int, name: str, left: str) -> None:
        if not self.bar.live.is_started:
            self.bar.start()
        self.bar.update(self.task, description=name, completed=step, total=total, left=left)

    def close(self) -> None:
        if self.bar.live.is_started:
            self.bar.stop()


def screen() -> Screen:
    """The screen that standard error allows."""
    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    return LiveBar(console) if console.is_terminal else Lines()
