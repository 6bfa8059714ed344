"""The command itself, in processes of its own: begun, killed, resumed, stopped, misused."""

import json
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forked import Forked
from training.small import Chain
from unmask.cli.main import main
from unmask.model.checkpoint import load
from unmask.settings import read_toml
from unmask.training import fit, state
from unmask.training.settings import Train

SETTINGS = """
[text]
tokenizer = "character"
documents = "line"
length = 16
valid = 0.1
[model]
width = 32
blocks = 2
heads = 2
dropout = 0.1
[optim]
batch = 16
warmup = 5
[run]
log_every = 2
save_every = 8
eval_every = 16
eval_rows = 32
preview = 0
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> list[str]:
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(SETTINGS)
    return ["--config", str(path)]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join("".join(chr(97 + i) for i in row) for row in Chain.make().rows(400, 0).tolist()))
    return path


def start(*arguments: str) -> Forked:
    return Forked("train", *arguments)


def finish(process: Forked, code: int = 0) -> str:
    said = process.communicate()[1]
    assert process.returncode == code, said
    return said


def lines(out: Path) -> list[dict]:
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def wait_for(what, process: Forked) -> None:
    while not what():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


@pytest.mark.slow
def test_a_run_killed_in_both_phases_and_resumed_equals_one_that_was_not(small, text, tmp_path):
    arguments = [*small, "--data", str(text), "--steps", "60", "--recipe", "warm"]
    finish(start(*arguments, "--out", str(tmp_path / "whole")))
    out = tmp_path / "killed"
    for step in (8, 40):  # of the first phase, then of the second
        process = start(*arguments, "--out", str(out), "--resume")
        wait_for(lambda step=step: (out / "checkpoints" / f"step-{step:08d}").exists(), process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    said = finish(start("--out", str(out), "--resume"))
    assert re.search(r"resumed at step (40|48|56)", said)
    assert lines(out) == lines(tmp_path / "whole")
    for name in ("model.safetensors", "training.safetensors"):
        told, seen = load_file(tmp_path / "whole" / "last" / name), load_file(out / "last" / name)
        assert told.keys() == seen.keys()
        assert all(torch.equal(told[key], seen[key]) for key in told)
    model = load(out / "best")
    assert (model.objective.name, model.spec.causal, model.spec.reads_before) == ("mdlm", False, True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_stop_saves_and_can_go_on(small, text, tmp_path, number):
    out = tmp_path / "run"
    process = start(*small, "--data", str(text), "--steps", "100000", "--out", str(out))
    wait_for(lambda: (out / "metrics.jsonl").exists(), process)
    process.send_signal(number)
    said = finish(process, 128 + number)
    stopped = int(re.search(r"stopped at step (\d+)", said)[1])
    assert (out / "last").resolve().name == f"step-{stopped:08d}"
    assert "Traceback" not in said
    said = finish(start("--out", str(out), "--resume", "--steps", str(stopped + 2)))
    assert f"resumed at step {stopped}" in said


@pytest.mark.slow
def test_of_two_runs_begun_at_once_in_one_folder_one_ends_and_the_other_is_refused(small, text, tmp_path):
    out = tmp_path / "run"
    both = [start(*small, "--data", str(text), "--steps", "20", "--out", str(out)) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    refused = said[both[0].returncode == 0]
    other = next(process.pid for process in both if process.returncode == 0)
    assert f"{out} is in use: process {other} on" in refused or f"{out} already holds a run" in refused
    steps = [line["step"] for line in lines(out) if "loss" in line]
    assert steps == sorted(set(steps))
    assert steps[-1] == 20
    assert not (out / ".lock").exists()


@pytest.mark.slow
def test_a_run_goes_on_from_another_with_its_tokenizer_and_refuses_another_one(small, text, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    arguments = [*small, "--data", str(text), "--steps", "8"]
    assert main(["train", *arguments, "--out", str(first), "--objective.name", "ar"]) == 0
    assert load(first / "last").spec.causal
    tuned = [
        *small,
        "--text.tokenizer",
        "auto",
        "--data",
        str(text),
        "--steps",
        "8",
        "--init",
        str(first),
        "--warm.anneal",
        "4",
    ]
    assert main(["train", *tuned, "--out", str(second)]) == 0
    assert not load(second / "last").spec.causal
    capsys.readouterr()
    other = ["--init", str(first), "--text.tokenizer", "byte"]
    assert main(["train", *arguments, *other, "--out", str(tmp_path / "third")]) == 2
    assert "another tokenizer" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_some_minutes_has_fixed_sizes_and_resumes_as_any_other(text, tmp_path, capsys):
    out, whole = tmp_path / "run", tmp_path / "whole"
    few = ["--text.tokenizer", "character", "--text.documents", "line", "--run.preview", "0", "--optim.lr", "1e-3"]
    arguments = ["--data", str(text), *few, "--minutes", "1e-4"]
    assert main(["train", *arguments, "--out", str(out), "--resume"]) == 0
    assert "chosen for about" in capsys.readouterr().err
    asked = read_toml(out / "settings.toml", Train())
    assert (asked.steps, asked.model.width, asked.text.pack, asked.text.length) == (20, 64, "rows", 24)
    assert asked.optim.lr == 1e-3
    before = load(out / "last").network.state_dict()
    assert main(["train", *arguments, "--out", str(out), "--resume"]) == 0  # as a job script would
    assert read_toml(out / "settings.toml", Train()) == asked
    assert "chosen" not in capsys.readouterr().err
    # Its settings alone give the same run, bit for bit.
    assert main(["train", "--config", str(out / "settings.toml"), "--out", str(whole)]) == 0
    again = load(whole / "last").network.state_dict()
    assert all(torch.equal(before[name], again[name]) for name in before)


@pytest.mark.slow
def test_a_run_stores_its_number_of_threads_and_resumes_with_it(small, text, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS")
    seen: list[int] = []
    monkeypatch.setattr(fit, "fewest_as_fast", lambda work, most: (work(), 2)[1])
    monkeypatch.setattr(state, "save_state", watching(state.save_state, seen))
    out, before = tmp_path / "run", torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        command = ["train", *small, "--out", str(out)]
        assert main([*command, "--data", str(text), "--steps", "8"]) == 0
        assert "computes with 2 threads, which are as fast as 3 here" in capsys.readouterr().err
        assert read_toml(out / "settings.toml", Train()).run.threads == 2
        assert main(["train", "--out", str(out), "--resume", "--steps", "16"]) == 0
        assert set(seen) == {2}
        seen.clear()
        assert main(["train", "--out", str(out), "--resume", "--steps", "24", "--threads", "1"]) == 0
        assert set(seen) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def watching(save, seen: list[int]):
    def saved(*arguments, **more):
        seen.append(torch.get_num_threads())
        return save(*arguments, **more)

    return saved


@pytest.mark.slow
def test_previews_by_time_change_no_number(small, text, tmp_path, capsys):
    arguments = [*small, "--data", str(text), "--steps", "6", "--run.preview", "1", "--run.eval-every", "100"]
    models, shown = [], []
    for minutes in ("0", "1e-9"):
        out = tmp_path / minutes
        assert main(["train", *arguments, "--run.preview-minutes", minutes, "--out", str(out)]) == 0
        models.append(load(out / "last").network.state_dict())
        shown.append(capsys.readouterr().err.count("\n  | "))
    assert shown[0] < shown[1]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "Give --out"),
        (["--out", "{out}"], "Give --data"),
        (["--out", "{out}", "--data", "{nowhere}"], "does not exist"),
        (["--out", "{text}", "--data", "{text}"], "is a file; give a folder"),
        (["--out", "{full}", "--data", "{text}"], "is not empty and holds no run"),
        (["--out", "{run}", "--data", "{text}"], "already holds a run. Resume it with --resume"),
        (["--out", "{run}", "--resume", "--seed", "9"], "a resumed run keeps its settings: seed is 1, not 9. Only"),
        (["--out", "{run}", "--resume", "--optim.lr", "5e-2"], "settings: optim.lr is 0.005, not 0.05. Only --steps"),
        (
            ["--out", "{run}", "--resume", "--model.width", "64", "--optim.batch", "4"],
            "settings: model.width is 256, not 64; optim.batch is 32, not 4. Only --steps",
        ),
        (["--out", "{run}", "--resume", "--optim.name", "adamw"], "optim.name is 'muon', not 'adamw'"),
        (["--out", "{run}", "--resume", "--data", "{latin}"], "settings: data is "),
        (["--out", "{text}/below", "--data", "{text}"], "could not write {text}/below: Not a directory"),
        (["--out", "/proc/unmask/run", "--data", "{text}"], "could not write /proc/unmask/run: No such file"),
        (["--out", "{out}", "--data", "{empty}"], "empty"),
        (["--out", "{out}", "--data", "{binary}"], "binary"),
        (["--out", "{out}", "--data", "{latin}", "--text.tokenizer", "byte"], "byte 1"),
        (["--out", "{out}", "--data", "{short}", "--text.tokenizer", "byte"], "too little text"),
        (["--out", "{out}", "--data", "{text}", "--config", "{nowhere}"], "cannot read"),
    ],
)
def test_a_mistake_ends_with_a_clear_error_and_overwrites_nothing(arguments, said, text, tmp_path, capsys):
    names = {name: tmp_path / name for name in ("out", "nowhere", "full", "run", "empty", "binary", "latin", "short")}
    for folder in ("full", "run"):
        names[folder].mkdir()
    (names["full"] / "thesis.txt").write_text("years of work")
    (names["run"] / "settings.toml").write_text(f'data = "{text}"\nout = "{names["run"]}"\n')
    names["empty"].write_text("")
    names["binary"].write_bytes(bytes(range(256)) * 10)
    names["latin"].write_bytes("né".encode("latin-1"))
    names["short"].write_text("")
    names["short"].write_bytes(b" ")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    filled = [argument.format(text=text, **names) for argument in arguments]
    assert main(["train", *filled]) == 2
    err = capsys.readouterr().err
    assert said.format(text=text) in err
    assert "Traceback" not in err
    assert {path: path.read_bytes() for path in before} == before


def test_an_unknown_flag_is_answered_with_the_nearest_one(capsys):
    assert main(["train", "--optim.warmpu", "3"]) == 2
    assert "optim.warmup" in capsys.readouterr().err
