"""A run on a mixture: from the command line, with passes of each text, and resumed as if never stopped."""

import json

import pytest
import torch

from unmask.cli.main import main
from unmask.model.weights import weights_fingerprint
from unmask.settings import read_toml
from unmask.training.data import open_data
from unmask.training.settings import Train


@pytest.mark.slow
def test_a_mixture_is_trained_validated_and_resumed_bit_for_bit(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 60)
    lines = [json.dumps({"text": f"a dog ran {i} times to the house"}) + "\n" for i in range(40)]
    (tmp_path / "b.jsonl").write_text("".join(lines))
    places = [f"{tmp_path}/a.txt:3", f"{tmp_path}/b.jsonl:1"]
    sizes = ["--model.width", "16", "--model.blocks", "1", "--model.heads", "2", "--length", "16"]
    rest = [
        "--tokenizer",
        "character",
        "--valid",
        "0.2",
        "--threads",
        "1",
        "--run.preview",
        "0",
        "--optim.batch",
        "4",
    ]
    rest += sizes
    for out, steps in (("whole", 6), ("half", 3)):
        line = ["train", "--data", *places, "--out", str(tmp_path / out), "--steps", str(steps), *rest]
        assert main([*line, "--optim.schedule", "constant", "--recipe", "plain"]) == 0
    printed = capsys.readouterr()
    assert "a.txt: 75.0% of the tokens, " in printed.out + printed.err
    assert "b.jsonl: 25.0% of the tokens, " in printed.out + printed.err
    assert main(["train", "--out", str(tmp_path / "half"), "--resume", "--steps", "6"]) == 0
    folders = [tmp_path / out / "last" for out in ("whole", "half")]
    assert weights_fingerprint(folders[0]) == weights_fingerprint(folders[1])
    asked = read_toml(tmp_path / "whole" / "settings.toml", Train())
    assert asked.data == " ".join(places)
    valid = open_data(asked, tmp_path / "whole" / "data").valid(16)
    assert sum(len(rows.tokens) for rows in valid) >= 8
    assert len(torch.cat([rows.tokens for rows in valid]).unique()) > 15  # of both texts


def test_a_place_without_a_weight_is_refused_before_anything_is_written(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("x")
    assert main(["train", "--data", f"{tmp_path}/a.txt:1", f"{tmp_path}/a.txt", "--out", str(tmp_path / "run")]) == 2
    assert "PLACE:WEIGHT" in capsys.readouterr().err
    assert not (tmp_path / "run" / "settings.toml").exists()
