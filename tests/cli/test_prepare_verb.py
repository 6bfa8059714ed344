"""`unmask prepare` as a person meets it."""

import io
import json
import subprocess
import sys

import pytest

from unmask.cli.main import main
from unmask.text.corpus.corpus import Corpus


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(3):
        stories = [f"The story of cat {i} and hat {j}." for j in range(50)]
        (folder / f"{i}.txt").write_text("<|endoftext|>".join(stories))
    return folder


@pytest.mark.slow
def test_prepare_makes_shards_of_a_folder_in_a_process_of_its_own(data, tmp_path):
    out = tmp_path / "out"
    line = [sys.executable, "-m", "unmask", "prepare", str(data), "--out", str(out), "--vocab", "300"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "150 documents" not in done.stderr  # nothing to say about ten seconds that never passed
    corpus = Corpus.open(out)
    assert corpus.tokenizer["size"] == 300
    assert f"{corpus.documents:,} documents" in done.stdout


def test_parts_and_merge_on_the_command_line_equal_one_job(data, tmp_path, capsys):
    common = ["--tokenizer", "byte", "--workers", "1", "--characters", "500"]
    assert main(["prepare", str(data), "--out", str(tmp_path / "one"), *common]) == 0
    parts = [str(tmp_path / f"part{i}") for i in (1, 2)]
    for i, part in enumerate(parts, 1):
        assert main(["prepare", str(data), "--out", part, "--part", f"{i}/2", *common]) == 0
    assert main(["prepare", *parts, "--merge", "--out", str(tmp_path / "merged")]) == 0
    manifests = [(tmp_path / name / "manifest.json").read_text() for name in ("one", "merged")]
    assert manifests[0] == manifests[1]
    assert len(json.loads(manifests[0])["shards"]) > 4


def test_standard_input_is_a_source(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ACGT\nNNAC\n")))
    options = ["--tokenizer", "dna", "--documents", "line", "--valid", "0", "--workers", "1"]
    assert main(["prepare", "-", "--out", str(tmp_path / "out"), *options]) == 0
    assert Corpus.open(tmp_path / "out").documents == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["absent"], "does not exist"),
        (["data", "--tokenizer", "bit"], "no tokenizer is called 'bit'"),
        (["data", "--documents", "lines"], "Did you mean 'line'"),
        (["data", "--part", "two"], "a part is written i/n"),
        (["data", "--part", "3/2"], "with i from 1 to n"),
        (["data", "--valid", "1.5"], "must be in"),
        (["data", "data"], "one source is expected, not 2"),
        (["data", "--merge"], "no parts to merge"),
        (["latin.txt"], "byte 3 is 0xe9"),
        (["binary.txt"], "byte 2 is zero"),
        (["empty.txt"], "is empty"),
        (["short.txt"], "fewer than two tokens"),
    ],
)
def test_mistakes_exit_with_2_and_leave_no_result(arguments, message, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = {"latin": b"caf\xe9", "binary": b"ab\x00", "empty": b"", "short": b" \n"}
    for name, content in files.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    common = [] if "--tokenizer" in arguments else ["--tokenizer", "byte"]
    line = ["prepare", *arguments, "--out", "out", "--workers", "1", *common]
    if "short.txt" in arguments:
        line += ["--documents", "line"]
    try:
        code = main(line)
    except SystemExit as stop:  # a value that its settings refuse is reported by the command line's parser
        code = stop.code
    assert code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_an_out_that_holds_something_else_is_left_alone(data, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert main(["prepare", str(data), "--out", str(tmp_path / "mine"), "--tokenizer", "byte"]) == 2
    assert "contains other files (thesis.tex)" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
