"""Trackers: the curves in another program, and runs that go on without it."""

import json
from pathlib import Path

import pytest

from unmask.cli.main import main
from unmask.errors import UserError
from unmask.training import track
from unmask.training.track import TRACKERS, Tracker, Writer

LINE = ["--threads", "1", "--optim.batch", "4", "--length", "16", "--run.preview", "0", "--run.log-every", "2"]
SMALL = ["--model.width", "16", "--model.blocks", "1", "--model.heads", "2", "--tokenizer", "byte", "--steps", "4"]


def curves(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def run(tmp_path, *more: str) -> int:
    (tmp_path / "a.txt").write_text("the cat sat on the mat.\n" * 40)
    return main(["train", "--data", str(tmp_path / "a.txt"), "--out", str(tmp_path / "run"), *LINE, *SMALL, *more])


def test_tensorboard_has_the_numbers_of_metrics_jsonl(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert run(tmp_path, "--run.track", "tensorboard") == 0
    found = events.EventAccumulator(str(tmp_path / "run/tensorboard"))
    found.Reload()
    wanted = [(line["step"], line["loss"]) for line in curves(tmp_path / "run") if "loss" in line]
    assert len(wanted) >= 2
    assert [(one.step, one.value) for one in found.Scalars("loss")] == [
        (step, pytest.approx(loss)) for step, loss in wanted
    ]


def test_a_tracker_that_fails_does_not_end_a_run(tmp_path, monkeypatch, capsys):
    def fails(out, settings, *, step):
        def log(values, step):
            raise ConnectionError("nobody there\nat all")

        return Writer(log, lambda: None)

    monkeypatch.setitem(TRACKERS, "tensorboard", fails)
    assert run(tmp_path, "--run.track", "tensorboard") == 0
    told = capsys.readouterr().err
    assert told.count("the tracker failed and is not used any more: nobody there. The curves are in") == 1
    assert curves(tmp_path / "run")[-1]["step"] == 4


def test_a_missing_library_is_said_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(track, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"run\.track wandb needs the package wandb: .*\[track\]"):
        Tracker("wandb", print)
    assert run(tmp_path, "--run.track", "mlflow") == 2
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_does_not_exist_is_refused(tmp_path):
    assert run(tmp_path, "--run.track", "abacus") == 2


def test_wandb_writes_without_a_network(tmp_path):
    pytest.importorskip("wandb")
    assert run(tmp_path, "--run.track", "wandb") == 0
    assert list((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # mlflow 3.17 uses what SQLAlchemy 2.1 deprecates
def test_mlflow_has_the_numbers_of_metrics_jsonl_also_of_a_resumed_run(tmp_path):
    pytest.importorskip("mlflow")
    tracking = pytest.importorskip("mlflow.tracking")
    assert run(tmp_path, "--run.track", "mlflow") == 0
    assert main(["train", "--out", str(tmp_path / "run"), "--resume", "--steps", "6"]) == 0
    client = tracking.MlflowClient(f"sqlite:///{tmp_path}/run/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("unmask").experiment_id])
    assert len(found) == 1
    seen = {one.step: one.value for one in client.get_metric_history(found[0].info.run_id, "loss")}
    assert seen == {line["step"]: line["loss"] for line in curves(tmp_path / "run") if "loss" in line}
