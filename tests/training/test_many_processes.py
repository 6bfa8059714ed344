"""Two real processes that train together, against one that trains alone."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forked import ranks
from training.runs import HALF, STEPS, alone, begun, shared_by, steps
from training.small import Chain, settings
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.files import clear_drafts
from unmask.model.checkpoint import load
from unmask.processes import sharding as shards
from unmask.processes.team import Alone, Lost, join_team, noticing
from unmask.training import state
from unmask.training.folder import claim

TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
WAYS = ("ddp", "fsdp")
SMALL = [
    *["--text.tokenizer", "character", "--text.documents", "line", "--text.length", "16", "--text.valid", "0.1"],
    *["--model.width", "32", "--model.blocks", "2", "--model.heads", "2", "--optim.batch", "16", "--steps", "99999"],
    *["--run.log-every", "2", "--run.save-every", "1000", "--run.eval-every", "8", "--run.eval-rows", "20"],
]


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Path:
    """One folder for all workers of pytest."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "parallel"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def seen(shared) -> dict:
    """What one process and two saw; the first worker that asks lets them run."""
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "alone.json").exists():
            told = alone(shared / "one")
            both = ranks(2, shared, program="training.two_ranks")
            said = [process.communicate()[1] for process in both]
            assert [process.returncode for process in both] == [0, 0], said
            assert "Warning" not in "".join(said)
            (shared / "alone.json").write_text(json.dumps(told))
    return json.loads((shared / "seen.json").read_text()) | {"one": json.loads((shared / "alone.json").read_text())}


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join("".join(chr(97 + i) for i in row) for row in Chain.make().rows(400, 0).tolist()))
    return path


def assert_same_steps(seen, told):
    """Loss and bound of every step, and the norm of the gradient: to 1e-6, or the last bits of larger numbers."""
    assert len(seen) == len(told)
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(told), rtol=2e-7, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_equal_one_at_the_same_global_batch(seen, way):
    assert_same_steps(seen[way]["steps"], seen["one"]["steps"])
    assert seen["one"]["steps"][-1][0] < seen["one"]["steps"][0][0] - 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("way", "name"), [(way, name) for way in WAYS for name in shared_by(way)])
def test_two_processes_equal_one_for_other_networks_and_objectives(seen, way, name):
    assert_same_steps(seen[way]["others"][name], seen["one"]["others"][name])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_share_a_validation_and_find_the_score_of_one(seen, way):
    assert seen[way]["score"] == pytest.approx(seen["one"]["score"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_resume_bit_for_bit(seen, way):
    assert seen[way]["repeats"]
    assert seen[way]["differing"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_go_on_with_a_checkpoint_of_one(seen, way):
    assert_same_steps(seen[way]["from one"], seen["one"]["steps"][HALF:])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_one_process_goes_on_with_a_checkpoint_of_two(seen, shared, way):
    current = begun(Alone(), seed=99)
    state.restore(state.folder_of(shared / way, HALF), current)
    assert_same_steps(steps(current, HALF, STEPS, Alone()), seen["one"]["steps"][HALF:])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_two_processes_export_is_the_whole_averaged_network(seen, shared, way):
    model, told = (load(state.folder_of(shared / name, STEPS)) for name in (way, "one"))
    assert (model.step, model.ema) == (STEPS, True)
    for (name, a), b in zip(model.network.named_parameters(), told.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6, msg=name)


@pytest.mark.slow
def test_a_process_keeps_its_share_of_a_sharded_network_only(seen, shared):
    assert seen["ddp"]["share"] == 1
    assert seen["fsdp"]["share"] == pytest.approx(0.5, abs=0.01)
    folder = state.folder_of(shared / "fsdp", STEPS)
    sizes = [path.stat().st_size for path in folder.glob(shards.SHARDS)]
    assert len(sizes) == 2
    assert sizes[0] == pytest.approx(sizes[1], rel=0.2)
    assert not (folder / state.TENSORS).exists()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_disk_that_is_full_for_one_process_stops_all_and_the_last_good_checkpoint_stays(seen, shared, way):
    assert all("could not write" in told for told in seen[way]["full"])
    assert state.steps_in(shared / way) == [HALF, STEPS]
    assert (shared / way / "last").resolve() == state.folder_of(shared / way, STEPS).resolve()
    clear_drafts(shared / way / "checkpoints")
    assert not list((shared / way / "checkpoints").glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_rank_0_does_alone_is_done_once_and_its_failure_is_everybodys(seen, way):
    assert seen[way]["did"] == [[0], []]
    assert seen[way]["result"] == [7, None]
    message = "the folder holds another run"
    assert seen[way]["heard"] == [["UserError", message], ["Told", message]]
    assert seen[way]["most"] == 15
    assert seen[way]["gathered"] == [0, 0, 1, 1]


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_one_process_goes_on(tmp_path, text, capfd):
    out = tmp_path / "run"
    run = subprocess.Popen(
        [*TWO, "-m", "unmask", "train", "--data", str(text), "--out", str(out), "--run.parallel", "fsdp", *SMALL],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: len(lines(out)) > 5, run)
        assert main(["train", "--out", str(out), "--resume"]) == 2  # rank 0 holds the folder
        assert f"{out} is in use: process" in capfd.readouterr().err
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate()
    finally:
        run.kill()
    (stopped,) = [line for line in said.splitlines() if line.startswith("stopped at step")]
    step = state.read_point(out / "last").step
    assert f"step {step}:" in stopped
    assert said.count("building a character vocabulary") == 1
    validations = [line for line in said.splitlines() if "validation" in line]
    previews = [line for line in validations if not line.startswith(f"step {step} ")]  # none at the step of the halt
    assert len(previews) == said.count("  | ")
    assert validations
    assert [line["step"] for line in lines(out) if "loss" in line] == [*range(2, step + 1, 2), *([step] * (step % 2))]
    assert len(list((out / "last").glob(shards.SHARDS))) == 2
    assert main(["train", "--out", str(out), "--resume", "--steps", str(step + 3)]) == 0
    assert f"resumed at step {step}" in capfd.readouterr().err
    assert load(out / "last").step == step + 3


@pytest.mark.slow
@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_gone_stops_the_other_with_a_message(tmp_path, text, harm):
    """Without torchrun, which would help: the other must notice by itself."""
    command = ["train", "--data", text, "--out", tmp_path / "run", *SMALL, "--run.patience", "15"]
    first, second = ranks(2, *command)
    try:
        wait_for(lambda: lines(tmp_path / "run"), first)
        second.send_signal(harm)
        _, said = first.communicate()
    finally:
        first.kill()
        second.kill()
    assert first.returncode == 2
    assert "unmask: process 0 of 2 lost the others: one has died or did not answer in time" in said
    assert "Traceback" not in said
    assert "--resume" in said
    assert second.communicate()[1] == ""


def lines(out: Path) -> list[dict]:
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(found, run) -> None:
    while not found():
        assert run.poll() is None, run.communicate()[1]
        time.sleep(0.1)


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_team("fsdp", seconds=5) as team:
        assert isinstance(team, Alone)
        assert team.lead(lambda: 7) == 7
        assert team.most(15) == 15


def test_a_lost_connection_is_said_in_plain_words_and_other_errors_are_left_alone():
    with pytest.raises(Lost, match=r"lost the others.*\(Connection closed by peer\)"), noticing():
        raise RuntimeError("[/build/gloo/transport/tcp/pair.cc:537] Connection closed by peer\nmore")
    with pytest.raises(RuntimeError, match="mat1 and mat2") as found, noticing():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert not isinstance(found.value, UserError)


def test_a_batch_that_cannot_be_shared_equally_is_refused_before_anything_is_written(tmp_path, text):
    asked = replace(settings(), data=str(text), out=str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"--optim.batch 16: that many rows cannot be shared equally by 3 processes"):
        claim(asked, print, ExitStack(), resume=False, world=3)
    assert not (tmp_path / "run").exists()
