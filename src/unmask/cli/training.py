"""`unmask.train`: the run of `unmask train` as a generator, for scripts and notebooks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask import settings as toml
from unmask.cli.flags import with_flags
from unmask.cli.train import Settings, names_in, walk
from unmask.training.folder import flat
from unmask.training.loop import Progress
from unmask.training.settings import Train


def train(
    data: str | Path = "",
    out: str | Path = "",
    *,
    config: str | Path = "",
    resume: bool = False,
    minutes: float = 0.0,
    quiet: bool = False,
    **settings: Any,
) -> Iterator[Progress]:
    """Train a model as `unmask train` does: the same data, phases, validation, checkpoints and log.

        for progress in unmask.train("my_texts/", "runs/mine", steps=200, model={"width": 128}):
            print(progress.step, progress.bound)
        model = unmask.load("runs/mine")

    Nothing happens before the first step is asked for. Leaving the loop early saves a checkpoint, as Ctrl-C does, and
    `resume=True` continues. The settings are those of `unmask train --help`; a group of them is a dictionary.
    config   a TOML file of settings, which the arguments override
    minutes  choose network, batch and steps for about this time
    quiet    print no log
    """
    said = Path(out) / "settings.toml"
    base = toml.read_toml(config, Train()) if config else Train()
    if resume and out and said.is_file():
        base = toml.read_toml(said, Train())
    given = {name: str(value) for name, value in (("data", data), ("out", out)) if str(value)} | settings
    asked = with_flags(toml.merged(base, given), "objective", "model")
    names = {*flat(given), *(names_in(str(config)) if config else ())}
    run = Settings(str(config), resume=resume, minutes=minutes, given=tuple(sorted(names)), train=asked)
    return steps(run, quiet)


def steps(settings: Settings, quiet: bool) -> Iterator[Progress]:
    try:
        yield from walk(settings, quiet=quiet)
    except SystemExit as stop:  # a signal: the run has saved, and says how to continue
        raise KeyboardInterrupt if stop.code == 130 else stop from None
