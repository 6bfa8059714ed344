"""experiments/control.py from end to end, at toy size."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from studies import promises
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load, save
from unmask.text.tokens.vocabulary import byte

pytestmark = pytest.mark.slow

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def model(folder, objective):
    ar, tokenizer = objective == "ar", byte()
    torch.manual_seed(0)
    network = Transformer(
        Architecture(tokenizer.size, length=64, width=16, blocks=1, causal=ar, reads_before=ar, heads=2)
    )
    torch.nn.init.normal_(network.output_layer.linear.weight, std=0.2)
    return str(save(folder / objective, network, mask=tokenizer.mask, objective=objective, tokenizer=tokenizer))


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["control.py", *arguments])
    runpy.run_path(str(EXPERIMENTS / "control.py"), run_name="__main__")


def test_the_sudoku_study_runs_and_keeps_networks_and_record(tmp_path, monkeypatch, capsys):
    run(monkeypatch, "--steps", "2", "--n", "1", "--keep", str(tmp_path), "--json", str(tmp_path / "a.json"))
    found = json.loads((tmp_path / "a.json").read_text())
    (table,) = found["tables"]
    assert (len(table["rows"]), found["settings"]["n"], found["seed"]) == (12, 1, 1)
    assert all(row["solved"]["of"] == 1 for row in table["rows"])
    assert [load(tmp_path / f"sudoku4_{name}").objective.name for name in ("ar", "mdlm")] == ["ar", "mdlm"]
    assert "mdlm, margin, greedy" in capsys.readouterr().out


@pytest.mark.long
def test_the_story_studies_run_and_every_promise_under_the_constraint_is_kept(tmp_path, monkeypatch, capsys):
    for name, value in {"LENGTH": 20, "PROMPT": "Once", "PAIRS": (("dog", "ball"),)}.items():
        monkeypatch.setattr(promises, name, value)
    (tmp_path / "stories.txt").write_text("A b. C d. E f.<|endoftext|>I j. K l. M n.")
    models = ("--model", model(tmp_path, "mdlm"), "--ar", model(tmp_path, "ar"))
    common = (*models, "--n", "2", "--markdown", "--json", str(tmp_path / "a.json"))

    def rows(*arguments):
        run(monkeypatch, *arguments, *common)
        return json.loads((tmp_path / "a.json").read_text())["tables"][0]["rows"]

    found = rows("infill", "--texts", str(tmp_path / "stories.txt"))
    assert [found[0]["first word"]["good"], len(found)] == [2, 6]
    found = rows("keywords")
    assert all(row["kept"]["good"] == 2 * ("constraint" in row["method"]) for row in found)
    assert len(found) == 8
    found = rows("remask", "--budgets", "4")
    assert all(row["calls"] <= row["steps"] for row in found)
    assert "| steps | remasking |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("infill",), "--model RUN"),
        (("remask", "--model", "nowhere/at/all"), "nowhere/at/all"),
        (("sudoku9", "--data", "nowhere"), "there is no file"),
    ],
)
def test_what_is_missing_is_told_without_a_traceback(monkeypatch, capsys, arguments, said):
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, *arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
