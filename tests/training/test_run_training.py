"""`unmask.train` is the run of `unmask train`: the same steps, checkpoints and defaults, as a generator."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tiny
import unmask
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.model import checkpoint, probe
from unmask.training.log import matrix_share

TEXT = "a cab had a bad bead. a fed hag had. " * 60
SMALL = {
    "model": {"width": 16, "blocks": 1, "heads": 2},
    "text": {"length": 16, "tokenizer": "character", "pack": "stream"},
    "optim": {"batch": 2, "warmup": 0},
    "run": {"eval_rows": 2, "preview": 0},
}
FLAGS = [
    part
    for group, values in SMALL.items()
    for name, value in values.items()
    for part in (f"--{group}.{name.replace('_', '-')}", str(value))
]


@pytest.fixture(autouse=True)
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)


def weights(folder: str) -> bytes:
    return (Path(folder) / "last" / "model.safetensors").read_bytes()


def test_training_in_python_equals_the_command(capsys):
    seen = [progress.step for progress in unmask.train("text.txt", "python", steps=3, quiet=True, **SMALL)]
    assert seen == [1, 2, 3]
    assert capsys.readouterr().err == ""
    assert main(["train", "--data", "text.txt", "--out", "command", "--steps", "3", *FLAGS]) == 0
    assert weights("python") == weights("command")
    (drawn,) = unmask.sample("python", length=8)
    assert len(drawn.tokens) <= 8


def test_no_share_of_the_matrix_rate_above_all_of_it_is_printed():
    assert matrix_share(5e10, 1e11) == "  50% of matrix rate"
    assert matrix_share(3.29e11, 1e11) == ""  # the rate was measured while the machine was busy


def test_a_loop_that_is_left_has_saved_and_goes_on_where_it_was():
    for progress in unmask.train("text.txt", "left", steps=4, quiet=True, **SMALL):
        if progress.step == 2:
            break
    assert unmask.load("left/last").step == 2
    assert [progress.step for progress in unmask.train(out="left", resume=True, quiet=True)] == [3, 4]
    whole = list(unmask.train("text.txt", "whole", steps=4, quiet=True, **SMALL))
    assert len(whole) == 4
    assert weights("left") == weights("whole")


def test_a_wrong_setting_is_told_at_once():
    with pytest.raises(UserError, match=r"setting in \[optim\] is called 'lrr'. Did you mean 'lr'"):
        unmask.train("text.txt", "wrong", optim={"lrr": 1})
    assert not Path("wrong").exists()


def test_a_thread_may_train():
    done: list[int] = []
    run = unmask.train("text.txt", "thread", steps=1, recipe="plain", quiet=True, **SMALL)
    thread = threading.Thread(target=lambda: done.extend(progress.step for progress in run))
    thread.start()
    thread.join()
    assert done == [1]


def write_model(folder: str, *, objective: str = "mdlm", **sampling: object) -> None:
    tiny.model(Path(folder), objective=objective)
    note = json.loads((Path(folder) / "unmask.json").read_text())
    note["settings"]["sampling"] = sampling
    (Path(folder) / "unmask.json").write_text(json.dumps(note))


def tuned(init: str, out: str, **settings: object) -> unmask.Model:
    rows = {"text": {"length": tiny.LENGTH, "pack": "stream"}, "run": {"eval_every": 1, "save_every": 1}}
    steps = unmask.train("text.txt", out, init=init, optim={"batch": 2}, **{"steps": 1, **rows, **settings})
    for _ in steps:
        pass
    return unmask.load(out)


@pytest.mark.slow
def test_a_tuned_model_keeps_the_sampling_defaults_in_previews_checkpoints_copies_and_resumed_runs(capsys):
    stored = {"sampler": "entropy", "temperature": 0.0, "no_repeat": 3}
    write_model("base", **stored)
    model = tuned("base", "tuned")
    assert model.sampling == stored
    (drawn,) = unmask.sample(model, seed=1)
    assert drawn.text.split() == capsys.readouterr().err.split("| ")[1].split("\n")[0].split(), "the preview"
    shutil.rmtree("base")
    assert tuned("base", "tuned", steps=2, resume=True).sampling == stored
    assert main(["convert", "tuned", "copy", "--top-p", "0.8", "--dtype", "float16"]) == 0
    assert unmask.load("copy").sampling == {**stored, "top_p": 0.8}
    assert main(["convert", "copy", "other", "--sampler", "groups", "--steps", "4"]) == 0
    assert unmask.load("other").sampling == {**stored, "top_p": 0.8, "sampler": "groups", "steps": 4}
    assert main(["convert", "other", "bare", "--plain"]) == 0
    assert unmask.load("bare").sampling == {}
    assert "default sampling settings: none" in capsys.readouterr().out


def test_defaults_for_another_kind_of_model_are_not_kept():
    write_model("ar", objective="ar", sampler="autoregressive", top_p=0.9)
    assert tuned("ar", "masked").sampling == {}


def test_the_phase_of_a_validation_is_named_in_the_log_and_in_the_metrics(capsys):
    settings = {**SMALL, "run": {"eval_rows": 2, "preview": 0, "eval_every": 2}}
    for _ in unmask.train("text.txt", "warm", steps=4, recipe="warm", warm={"share": 0.5}, **settings):
        pass
    err = capsys.readouterr().err
    assert "the numbers of the ar phase do not compare with those of mdlm, which follows" in err
    assert [line.split(" phase")[0] for line in err.splitlines() if "validation" in line] == [
        "step 2  validation (ar",
        "step 4  validation (mdlm",
    ]
    lines = [json.loads(line) for line in Path("warm/metrics.jsonl").read_text().splitlines()]
    assert {(line["step"], line["objective"]) for line in lines} == {(2, "ar"), (4, "mdlm")}


def test_a_run_that_cannot_fit_into_memory_is_refused_before_it_begins_unless_told(monkeypatch):
    huge = {**SMALL, "optim": {"batch": 10**9}}
    run = unmask.train("text.txt", "huge", steps=1, quiet=True, **huge)
    with pytest.raises(UserError, match=r"needs about [\d,.]+ GB of memory and this machine has .* --run.oversize"):
        next(run)
    assert not Path("huge/settings.toml").exists()
    monkeypatch.setattr("unmask.model.room.machine_bytes", lambda: 1)
    with pytest.raises(UserError, match="GB of memory"):
        next(unmask.train("text.txt", "small", steps=1, quiet=True, **SMALL))
    told = {**SMALL, "run": {**SMALL["run"], "oversize": True}}
    assert len(list(unmask.train("text.txt", "small", steps=1, quiet=True, **told))) == 1


def test_the_api_of_python_imports_nothing_of_the_terminal():
    seen = "[one for one in sys.modules if one.split('.')[0] in ('tyro', 'rich', 'torch') or 'unmask.cli' in one]"
    code = f"import sys, unmask; unmask.train; unmask.classify; print({seen})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'torch'" in out
    assert "'tyro'" not in out
    assert "'rich'" not in out
    assert "unmask.cli" not in out


def test_the_weights_to_start_from_are_read_and_checked_once(monkeypatch):
    tiny.model(Path("base"))
    reads = []
    for module, name in ((checkpoint, "read_tensors"), (probe, "check")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, real=real, name=name, **k: reads.append(name) or real(*a, **k))
    settings = {"text": {"length": tiny.LENGTH}, "optim": {"batch": 2}, "run": {"preview": 0}}
    assert len(list(unmask.train("text.txt", "tuned", init="base", minutes=1e-4, quiet=True, **settings))) == 20
    assert sorted(reads) == ["check", "read_tensors"]
