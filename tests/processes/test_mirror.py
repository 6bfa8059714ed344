"""Runs and corpora that are kept elsewhere: the same as those here, resumed on another machine, owned by one."""

import json
import os
import shutil
from pathlib import Path

import pytest

import stores
import tiny
import unmask
from unmask import storage
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.processes.mirror import mirror_of
from unmask.text.corpus.corpus import verify
from unmask.text.corpus.manifest import prepared_folder

SMALL = {
    "model": {"width": 16, "blocks": 1, "heads": 2},
    "text": {"length": 16, "tokenizer": "character", "pack": "stream"},
    "optim": {"batch": 2, "warmup": 0},
    "run": {"eval_rows": 2, "preview": 0, "save_every": 2, "keep": 1},
}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a cab had a bad bead. a fed hag had. " * 60)
    return path


def said(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def trained(data, out, steps, **more):
    for progress in unmask.train(str(data), str(out), steps=steps, quiet=True, **SMALL, **more):
        yield progress.step


@pytest.mark.slow
def test_prepared_evaluated_and_sampled_elsewhere_as_here(bucket, text, tmp_path, capsys):
    storage.upload(text, f"{bucket}/texts/text.txt")
    prepare = ("--tokenizer", "byte", "--workers", 1, "--documents", "line", "--valid", 0)
    assert said(capsys, "prepare", text.parent / "*.txt", "--out", tmp_path / "data", *prepare)[0] == 0
    for source in (f"{bucket}/texts", f"{bucket}/texts/*.txt", f"{bucket}/texts/text.txt"):
        code, out, err = said(capsys, "prepare", source, "--out", f"{bucket}/data", *prepare)
        assert (code, err) == (0, "")  # the second and the third find it done
        assert out.startswith(f"{bucket}/data: tokenizer of")
    there = storage.listing(f"{bucket}/data")
    for name in there:
        assert storage.read_remote(f"{bucket}/data/{name}") == (tmp_path / "data" / name).read_bytes()
    assert "every shard is as it was written" in said(capsys, "prepare", f"{bucket}/data", "--verify")[1]
    verify(prepared_folder(f"{bucket}/data"))
    assert not list((tmp_path / "cache" / "work").glob("*/data"))
    code, _, err = said(capsys, "prepare", text, "--out", f"{bucket}/data", "--tokenizer", "character")
    assert (code, "prepared differently" in err) == (2, True)
    code, _, err = said(capsys, "prepare", text, "--out", f"{bucket}/texts", *prepare)
    assert (code, "contains other files (text.txt)" in err) == (2, True)

    model = tiny.checkpoint(tmp_path / "model")
    for path in model.iterdir():
        storage.upload(path, f"{bucket}/model/{path.name}")
    storage.write_remote(f"{bucket}/model/training.safetensors", b"of a resumed run alone")
    here, elsewhere = (
        json.loads(said(capsys, "evaluate", folder, data, "--passes", 1, "--json")[1])
        for folder, data in ((model, text), (f"{bucket}/model", f"{bucket}/texts"))
    )
    assert here["nats_per_token"] == elsewhere["nats_per_token"]
    samples = [said(capsys, "sample", folder, "--seed", 3)[1] for folder in (model, f"{bucket}/model")]
    assert samples[0] == samples[1] != ""


def test_a_run_elsewhere_goes_on_on_another_machine_bit_for_bit(bucket, text, tmp_path, monkeypatch):
    list(trained(text, tmp_path / "whole", 6))
    for step in trained(text, f"{bucket}/run", 6):
        if step == 3:
            break  # as Ctrl-C: it saves
    assert storage.read_remote(f"{bucket}/run/last") == b"checkpoints/step-00000003"
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "another machine"))
    assert list(unmask.train(out=f"{bucket}/run", resume=True, quiet=True))[-1].step == 6
    folder = tmp_path / "whole" / "last"
    for name in ("model.safetensors", "training.safetensors"):
        address = f"{bucket}/run/checkpoints/step-00000006/{name}"
        assert storage.read_remote(address) == (folder / name).read_bytes()
    there = storage.listing(f"{bucket}/run")
    assert {name.split("/")[1] for name in there if name.startswith("checkpoints/")} <= {
        path.name for path in (tmp_path / "whole" / "checkpoints").iterdir()
    }
    assert not [name for name in there if ".draft" in name or ".lock" in name]
    model = unmask.load(f"{bucket}/run")
    assert model.step == unmask.load(tmp_path / "whole").step
    with pytest.raises(UserError, match=r"already holds a run\. Resume it with --resume"):
        list(trained(text, f"{bucket}/run", 6))


def test_a_run_learns_from_data_elsewhere_as_from_data_here(bucket, text, tmp_path, monkeypatch):
    words = ("prepare", text, "--tokenizer", "character", "--workers", 1, "--out")
    assert main([str(word) for word in (*words, tmp_path / "data")]) == 0
    assert main([str(word) for word in (*words, f"{bucket}/data")]) == 0
    monkeypatch.setattr(storage, "BLOCK", 128)
    list(trained(tmp_path / "data", tmp_path / "here", 3))
    list(trained(f"{bucket}/data", tmp_path / "there", 3))
    here, there = ((tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("here", "there"))
    assert here == there


def test_a_half_uploaded_checkpoint_is_left_out_and_removed(bucket, text, tmp_path, monkeypatch):
    list(trained(text, f"{bucket}/run", 2))
    half = f"{bucket}/run/checkpoints/step-00000004/model.safetensors"
    storage.write_remote(half, b"the upload was killed")
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "another machine"))
    steps = [progress.step for progress in unmask.train(out=f"{bucket}/run", steps=3, resume=True, quiet=True)]
    assert steps == [3]
    assert not [name for name in storage.listing(f"{bucket}/run") if "step-00000004" in name]


def test_whoever_reads_while_a_run_uploads_finds_a_whole_checkpoint(text, tmp_path, monkeypatch):
    """After every single change at the address, the last checkpoint and the best are there as a whole."""
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    bucket = stores.new_bucket(stores.MEMORY)
    steps = []

    def checked(change):
        def then(*arguments):
            change(*arguments)
            there = storage.listing(f"{bucket}/run")
            for link in {"best", "last"} & set(there):
                folder = storage.read_remote(f"{bucket}/run/{link}").decode()
                names = {name.removeprefix(f"{folder}/") for name in there if name.startswith(f"{folder}/")}
                assert {"model.safetensors", "training.safetensors", "unmask.json", "training.json"} <= names
                steps.append(folder)
            for name in there:  # a note is never there without what it vouches for
                if name.endswith("training.json"):
                    assert name.replace(".json", ".safetensors") in there

        return then

    for name in ("upload", "write_remote", "remove_remote"):
        monkeypatch.setattr(storage, name, checked(getattr(storage, name)))
    list(trained(text, f"{bucket}/run", 6))
    assert len(set(steps)) > 1


def test_the_process_that_began_last_owns_a_run(bucket, text, tmp_path, monkeypatch):
    first = trained(text, f"{bucket}/run", 8)
    assert next(first) == 1
    assert next(first) == 2
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "another machine"))
    later = unmask.train(out=f"{bucket}/run", resume=True, quiet=True)
    assert next(later).step == 3
    before = storage.listing(f"{bucket}/run")
    with pytest.raises(UserError, match=r"was taken over by process \d+ on .*: nothing more is written there"):
        list(first)
    assert storage.listing(f"{bucket}/run") == before
    assert [progress.step for progress in later][-1] == 8


def test_two_processes_of_a_machine_do_not_share_a_run(text, tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    bucket = stores.new_bucket(stores.MEMORY)
    first = trained(text, f"{bucket}/run", 8)
    next(first)
    with pytest.raises(UserError, match="is in use: process"):
        list(unmask.train(out=f"{bucket}/run", resume=True, quiet=True))
    first.close()


def test_an_address_with_other_files_is_left_alone(text, tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    bucket = stores.new_bucket(stores.MEMORY)
    storage.write_remote(f"{bucket}/mine/letters.txt", b"dear")
    before = storage.listing(f"{bucket}/mine")
    with pytest.raises(UserError, match="is not empty and holds no run: nothing was touched"):
        list(trained(text, f"{bucket}/mine", 2))
    assert not list((tmp_path / "cache").rglob("letters.txt"))  # nothing was downloaded either
    assert storage.listing(f"{bucket}/mine") == before


def test_what_cannot_be_kept_elsewhere_is_refused(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    code, _, err = said(capsys, "prepare", text, "--out", "memory://a/b", "--part", "1/2")
    assert (code, "a part goes to a folder of this machine" in err) == (2, True)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="processes on several machines write to a folder that they share"):
        mirror_of("s3://bucket/run")


def test_a_run_by_file_address_is_one_of_this_machine(text, tmp_path):
    list(trained(f"file://{text}", f"file://{tmp_path}/run", 1))
    assert unmask.load(f"file://{tmp_path}/run").num_parameters
    assert Path(tmp_path / "run" / "settings.toml").is_file()
    shutil.rmtree(tmp_path / "run")
    assert os.listdir(tmp_path) == ["text.txt"]
