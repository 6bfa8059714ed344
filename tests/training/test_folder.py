"""A run's folder: one writer, its own settings and data, and room to go on after every mishap."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load

from full_disk import files_at_most
from training.small import Chain
from unmask import settings as toml
from unmask.cli.main import main
from unmask.diffusion.objective import OBJECTIVES
from unmask.files import draft_of, is_draft
from unmask.processes.lock import hold_lock
from unmask.training import metrics, state
from unmask.training.fit import Order
from unmask.training.folder import differences
from unmask.training.log import Lines
from unmask.training.phases import phases
from unmask.training.run import run
from unmask.training.settings import Train

SMALL = [
    *["--text.tokenizer", "character", "--text.documents", "line", "--text.length", "16", "--text.valid", "0.1"],
    *["--model.width", "16", "--model.blocks", "1", "--model.heads", "2", "--optim.batch", "8", "--recipe", "plain"],
    *["--run.log-every", "1", "--run.save-every", "2", "--run.eval-rows", "8", "--run.preview", "0"],
]


def written(path: Path) -> Path:
    path.write_text("\n".join("".join(chr(97 + i) for i in row) for row in Chain.make().rows(60, 0).tolist()))
    return path


@pytest.fixture
def text(tmp_path) -> Path:
    return written(tmp_path / "text.txt")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("made")
    assert train(folder / "run", "--data", str(written(folder / "text.txt")), "--steps", "2") == 0
    return folder / "run"


@pytest.fixture
def out(tmp_path, made) -> Path:
    """A copy of that run."""
    return shutil.copytree(made, tmp_path / "run", symlinks=True)


def train(out: Path, *arguments: str) -> int:
    return main(["train", *SMALL, "--out", str(out), *arguments])


def resumed(out: Path, *arguments: str) -> int:
    return main(["train", "--out", str(out), "--resume", *arguments])


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def prepared(text: Path, out: Path) -> Path:
    line = ["prepare", str(text), "--out", str(out), "--tokenizer", "character", "--documents", "line"]
    assert main([*line, "--workers", "1", "--valid", "0.1"]) == 0
    return out


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_the_stored_settings_of_every_objective_are_those_that_were_asked_for(name, tmp_path):
    asked = toml.merge_settings(Train(), {"objective": {"name": name}})
    (tmp_path / "settings.toml").write_text(toml.dumps(asked))
    assert differences(toml.read_toml(tmp_path / "settings.toml", Train()), asked, ()) == {}


def test_steps_and_the_settings_of_run_may_change(out):
    assert resumed(out, "--steps", "4", "--run.log-every", "2", "--run.keep", "1") == 0
    assert state.steps_in(out)[-1] == 4
    assert [line["step"] for line in metrics.read_metrics(out) if "loss" in line] == [1, 2, 4]


def test_a_second_process_in_the_folder_is_refused_and_touches_nothing(out, capsys):
    with hold_lock(out / ".lock"):
        before = content(out)
        assert resumed(out, "--steps", "4") == 2
        assert f"{out} is in use: process {os.getpid()} on" in capsys.readouterr().err
        assert content(out) == before
    assert resumed(out, "--steps", "4") == 0
    assert not (out / ".lock").exists()


def test_a_folder_in_which_another_process_has_just_begun_is_refused(tmp_path, text, capsys):
    with hold_lock(tmp_path / "run" / ".lock"):
        assert train(tmp_path / "run", "--data", str(text)) == 2
        assert "is in use" in capsys.readouterr().err
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_two_preparations_of_one_folder_are_refused_and_parts_are_not(tmp_path, text, capsys):
    line = ["prepare", str(text), "--tokenizer", "byte", "--out", str(tmp_path / "data"), "--workers", "1"]
    with hold_lock(tmp_path / "data" / ".part-1-of-1.lock"):
        assert main(line) == 2
        assert f"data is in use: process {os.getpid()}" in capsys.readouterr().err
        assert main([*line, "--part", "1/2"]) == 0


def test_drafts_of_a_killed_process_are_no_hindrance_and_go(tmp_path, text):
    out = tmp_path / "run"
    (out / "data").mkdir(parents=True)
    drafts = [draft_of(out / "settings.toml"), draft_of(out / "data" / "manifest.json"), out / "data.sha256"]
    for path in (*drafts, out / ".lock"):
        path.write_text("half")
    assert train(out, "--data", str(text), "--steps", "1", "--resume") == 0
    assert not any(path.exists() for path in drafts[:2])


def test_other_files_in_the_folder_are_still_refused(tmp_path, text, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".thesis").write_text("years of work")
    assert train(tmp_path / "mine", "--data", str(text), "--resume") == 2
    assert "is not empty and holds no run: nothing was touched" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [".thesis"]


DNA = ["--text.tokenizer", "dna", "--text.length", "8", "--text.valid", "0", "--optim.batch", "2", "--steps", "1"]


def genes(path: Path, letters: str = "ACGGTCATTGCA") -> Path:
    path.write_text("".join(f">{i}\n{letters[i:] * 4}\n" for i in range(4)))
    return path


def trained(out: Path, data: Path, *arguments: str) -> int:
    small = ["--model.width", "8", "--model.blocks", "1", "--run.preview", "0", "--data", str(data)]
    return main(["train", "--out", str(out), *DNA, *small, *arguments])


def test_text_that_cannot_be_read_leaves_no_folder_and_the_corrected_text_is_trained_on(tmp_path, capsys):
    out, data = tmp_path / "run", genes(tmp_path / "a.fa", "ACGG--CATTGCA")
    assert trained(out, data) == 2
    assert "no token for '-'" in capsys.readouterr().err
    assert not out.exists()
    assert trained(out, genes(data)) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "network, wrong, right, message",
    [("mamba", "mdlm", "ar", "'mamba' reads forward only"), ("caduceus", "ar", "mdlm", "reads both ways")],
)
def test_a_network_that_does_not_fit_the_objective_is_refused_before_anything_is_written(
    network, wrong, right, message, tmp_path, capsys
):
    out, data = tmp_path / "run", genes(tmp_path / "a.fa")
    assert trained(out, data, "--model.name", network, "--objective.name", wrong) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "tokenizing" not in said
    assert not out.exists()
    assert trained(out, data, "--model.name", network, "--objective.name", right) == 0


@pytest.mark.parametrize(
    "wrong, right, message",
    [
        (
            ["--model.name", "caduceus", "--model.equivariant", "--text.tokenizer", "byte"],
            ["--text.tokenizer", "dna"],  # the last one counts
            "needs a vocabulary of bases",
        ),
        (["--text.pack", "windows", "--text.length", "64"], ["--text.length", "8"], "not one row of 64"),
    ],
)
def test_a_run_that_fails_before_its_first_step_yields_to_the_corrected_command(
    wrong, right, message, tmp_path, capsys
):
    out, data = tmp_path / "run", genes(tmp_path / "a.fa")
    assert trained(out, data, *wrong) == 2
    assert message in capsys.readouterr().err
    assert not (out / "settings.toml").exists()
    assert trained(out, data, *wrong, *right) == 0
    assert state.steps_in(out) == [1]


def test_a_failed_run_never_gives_away_tokens_that_it_did_not_make(tmp_path, text, capsys):
    out = tmp_path / "run"
    data = prepared(text, out / "data")
    before = content(data)
    assert train(out, "--data", str(data), "--text.pack", "windows", "--text.length", "5000") == 2
    assert "not one row of 5000" in capsys.readouterr().err
    assert trained(out, genes(tmp_path / "a.fa")) == 2
    assert "holds data that was prepared differently" in capsys.readouterr().err
    assert {name: one for name, one in content(data).items() if name != ".verified.json"} == before


def test_intervals_without_one_to_train_on_are_told_by_their_splits(tmp_path, capsys):
    out, data, bed = tmp_path / "run", genes(tmp_path / "a.fa"), tmp_path / "a.bed"
    bed.write_text("0\t0\t20\tvalid\n1\t0\t20\ttest\n2\t0\t20\ttest\n")
    assert trained(out, data, "--intervals", str(bed)) == 2
    assert f"{bed} lists no interval to train on, only 1 of valid and 2 of test" in capsys.readouterr().err
    assert not out.exists()
    line = ["prepare", str(data), "--intervals", str(bed), "--tokenizer", "dna", "--workers", "1", "--out"]
    assert main([*line, str(tmp_path / "data")]) == 0
    assert trained(out, tmp_path / "data") == 2
    assert "has no documents to train on, only 2 of test and 1 of valid" in capsys.readouterr().err
    bed.write_text("0\t0\t20\ttrain\n1\t0\t20\tvalid\n")
    assert trained(out, data, "--intervals", str(bed)) == 0


@pytest.mark.slow
def test_data_that_was_replaced_is_refused_and_data_that_was_moved_is_not(tmp_path, text, capsys):
    data, out = prepared(text, tmp_path / "data"), tmp_path / "run"
    assert train(out, "--data", str(data), "--steps", "2") == 0
    moved = data.rename(tmp_path / "moved")
    assert resumed(out, "--steps", "3", "--data", str(moved)) == 0
    text.write_text(text.read_text() + "\nabc")  # the same letters, so the same tokenizer
    other = prepared(text, tmp_path / "other")
    before = content(out)
    capsys.readouterr()
    assert resumed(out, "--steps", "4", "--data", str(other)) == 2
    assert f"a resumed run keeps its settings: data is '{moved}', not '{other}'. Only" in capsys.readouterr().err
    shutil.rmtree(moved)
    other.rename(moved)
    assert resumed(out, "--steps", "4") == 2
    assert f"{moved} does not hold the data that this run was begun with" in capsys.readouterr().err
    assert content(out) == before


@pytest.mark.slow
def test_text_that_changed_under_its_name_changes_nothing(tmp_path, text):
    assert train(tmp_path / "run", "--data", str(text), "--steps", "1") == 0
    text.write_text("other text")
    assert resumed(tmp_path / "run", "--steps", "2") == 0


def test_a_damaged_shard_is_refused_and_the_advice_works(out, capsys):
    shard = next((out / "data" / "shards").glob("train-*.bin"))
    data = bytearray(shard.read_bytes())
    data[-9] ^= 1
    shard.write_bytes(data)
    assert resumed(out, "--steps", "3") == 2
    assert (
        f"{shard} is damaged: its sha256 differs from the manifest's. Remove {out / 'data'}"
        in capsys.readouterr().err
    )
    shutil.rmtree(out / "data")
    assert resumed(out, "--steps", "3") == 0


@pytest.mark.slow
def test_a_damaged_checkpoint_falls_back_and_ends_where_it_would_have_ended(out, capsys):
    assert resumed(out, "--steps", "4") == 0
    told, lines = load((out / "last" / state.TENSORS).read_bytes()), metrics.read_metrics(out)
    path = state.folder_of(out, 4) / state.TENSORS
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    capsys.readouterr()
    assert resumed(out) == 0
    said = capsys.readouterr().err
    assert "step-00000004 cannot be resumed: training.safetensors is not the file that was saved" in said
    assert "resumed at step 2" in said
    seen = load((out / "last" / state.TENSORS).read_bytes())
    assert told.keys() == seen.keys()
    assert all(told[name].equal(seen[name]) for name in told)
    assert [line["step"] for line in metrics.read_metrics(out)] == [line["step"] for line in lines]


def test_a_run_killed_before_its_first_checkpoint_begins_its_curves_again(out):
    shutil.rmtree(out / "checkpoints")
    assert resumed(out) == 0
    assert [line["step"] for line in metrics.read_metrics(out) if "loss" in line] == [1, 2]


@pytest.mark.parametrize("odd", [b"\xff\xfe\n", b'{"step": "two"}\n', b'{"step": 1, "lo'])
def test_odd_curves_are_no_hindrance(out, odd):
    with (out / "metrics.jsonl").open("ab") as file:
        file.write(odd)
    assert resumed(out, "--steps", "3") == 0
    assert [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()][-1] == 3


@pytest.mark.slow
@pytest.mark.parametrize("limit", [200, 3_000, 20_000])
def test_a_disk_that_is_full_is_an_error_and_with_room_the_run_goes_on(tmp_path, text, capsys, limit):
    out = tmp_path / "run"
    with files_at_most(limit):
        code = train(out, "--data", str(text), "--steps", "2", "--resume")
    said = capsys.readouterr().err
    assert (code, "could not write" in said) == (2, True), said
    assert not [path for path in out.rglob(".*") if is_draft(path) or path.suffix == ".lock"]
    assert train(out, "--data", str(text), "--steps", "2", "--resume") == 0


def test_a_phase_that_has_begun_stays_where_it_began_whatever_the_steps():
    asked = Train(recipe="warm", steps=4000)
    assert [phase.start for phase in phases(asked)] == [0, 1000]
    assert [phase.start for phase in phases(asked, step=800, began=250)] == [0, 250]  # it was a run of 1,000 steps
    assert [phase.start for phase in phases(asked, step=250, began=0)] == [0, 1000]  # the first phase goes on
    assert [phase.start for phase in phases(asked, step=1500, began=0)] == [0, 1500]  # it was longer than it is now


def test_the_number_of_threads_of_a_run_stays_when_it_is_resumed_with_the_first_settings(out):
    stored = toml.read_toml(out / "settings.toml", Train())
    assert stored.run.threads != "auto"
    first = replace(stored, steps=3, out=str(out), run=replace(stored.run, threads="auto"))
    for _ in run(Order(first, resume=True), Lines(quiet=True)):
        pass
    assert toml.read_toml(out / "settings.toml", Train()).run.threads == stored.run.threads
