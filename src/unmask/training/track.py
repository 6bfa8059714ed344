"""Trackers: the curves of a run in a program that people already use. metrics.jsonl stays the truth.

Each writes to the run's folder, without a network, unless the library's own environment variables say otherwise
(WANDB_MODE, MLFLOW_TRACKING_URI). A tracker that fails is a warning and never ends a run.
"""

import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from unmask.errors import UserError, install

PROJECT = "unmask"


class Writer(NamedTuple):
    """A tracker that is open."""

    log: Callable[[Mapping[str, float], int], object]  # numbers by name, and their step
    close: Callable[[], object]


class Opens(Protocol):
    def __call__(self, out: Path, settings: Mapping[str, Any], *, step: int) -> Writer:
        """A writer for the run in a folder, which goes on after a step."""


def tensorboard(out: Path, settings: Mapping[str, Any], *, step: int) -> Writer:
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            board.add_scalar(name, value, step)

    return Writer(log, board.close)


def wandb(out: Path, settings: Mapping[str, Any], *, step: int) -> Writer:
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    same = sha256(str(out.resolve()).encode()).hexdigest()[:16]  # a resumed run goes on under its name
    run = wandb.init(
        project=PROJECT, name=out.name, id=same, resume="allow", dir=str(out), config=dict(settings), mode=mode
    )
    return Writer(lambda values, step: run.log(dict(values), step=step), run.finish)


def mlflow(out: Path, settings: Mapping[str, Any], *, step: int) -> Writer:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(out / 'mlflow.db').resolve()}")
    project = client.get_experiment_by_name(PROJECT)
    experiment = client.create_experiment(PROJECT) if project is None else project.experiment_id
    where = str(out.resolve())
    same = [run for run in client.search_runs([experiment]) if run.data.tags.get("folder") == where]
    tags = {"folder": where}
    run = same[0] if same else client.create_run(experiment, run_name=out.name, tags=tags)
    for name, value in ({} if same else settings).items():
        client.log_param(run.info.run_id, name, value)

    def log(values: Mapping[str, float], step: int) -> None:
        client.log_batch(run.info.run_id, [Metric(name, value, 0, step) for name, value in values.items()])

    return Writer(log, lambda: client.set_terminated(run.info.run_id))


TRACKERS: dict[str, Opens] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}


def check_tracker(name: str) -> None:
    """Refuse a tracker whose library is not installed."""
    if name and find_spec(name) is None:
        how = install("train") if name == "tensorboard" else f"{install('track')}, or pip install {name}"
        raise UserError(f"run.track {name} needs the package {name}: {how}")


class Tracker:
    """The tracker of a run, or none; what fails in it is said once, and then it is left alone."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        check_tracker(name)
        self.name, self.say = name, say
        self.writer: Writer | None = None

    def start(self, out: Path, settings: Mapping[str, Any], *, step: int) -> None:
        if self.name and self.writer is None:
            self.writer = self.tried(lambda: TRACKERS[self.name](out, settings, step=step))

    def log(self, values: Mapping[str, float], step: int) -> None:
        writer = self.writer
        if writer is not None:
            self.tried(lambda: writer.log(values, step))

    def close(self) -> None:
        writer, self.writer = self.writer, None
        if writer is not None:
            self.tried(writer.close)

    def tried(self, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except Exception as error:  # of somebody else's program: training is worth more
            self.writer, self.name = None, ""
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.say(
                f"warning: the tracker failed and is not used any more: {what}. The curves are in metrics.jsonl."
            )
            return None
