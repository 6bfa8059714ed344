"""Numbers by their place in a result."""

import json

import pytest
from tiny_study import TINY, ran, written

from unmask.studies.study import read_study
from unmask.studies.table import budget_of, dig, places


@pytest.mark.parametrize(
    "path, value",
    [
        ("perplexity", 3.5),
        ("drawn.seconds", 2),
        ("results[set=ptb].perplexity", 7),
        ("results[set=none].perplexity", None),
        ("none", None),
        ("perplexity.deeper", None),
    ],
)
def test_a_value_by_its_place(path, value):
    content = {
        "perplexity": 3.5,
        "drawn": {"seconds": 2},
        "results": [{"set": "lm1b", "perplexity": 5}, {"set": "ptb", "perplexity": 7}],
    }
    assert dig(content, path) == value
    assert dig(content, path, "missing") == ("missing" if value is None else value)


def test_what_is_there_and_empty_is_not_missing():
    assert dig({"error": None}, "error", "missing") is None


def test_every_number_has_a_place_at_which_it_is_found():
    content = {
        "perplexity": 3.5,
        "drawn": {"seconds": 2, "named": "x"},
        "results": [{"set": "lm1b", "perplexity": 5}, {"set": "ptb", "perplexity": 7}],
        "curve": [1.0, 2.0],
        "none": None,
    }
    found = {place: dig(content, place) for place in places(content)}
    assert found == {
        "perplexity": 3.5,
        "drawn.seconds": 2,
        "results[set=lm1b].perplexity": 5,
        "results[set=ptb].perplexity": 7,
    }


@pytest.mark.parametrize(
    "changes, said",
    [
        ({}, "equal steps"),
        ({"row": [{"name": "MDLM"}, {"name": "AR", "train": {"steps": 9}}]}, "steps as the rows say"),
        ({"row": [{"name": "MDLM"}, {"name": "AR", "flops": 1e9}]}, "FLOPs as the rows say"),
        ({"budget": "flops", "like": "AR"}, "equal flops"),
    ],
)
def test_a_table_says_what_its_trainings_have_in_common(tmp_path, changes, said):
    assert budget_of(read_study(written(tmp_path, **changes))) == said


def test_a_learning_curve_begins_after_the_warm_start(tmp_path):
    train = {**TINY["train"], "recipe": "warm", "run": {**TINY["train"]["run"], "eval_every": 1}}
    path = written(tmp_path, train=train, row=[{"name": "MDLM"}], picture={"kind": "bars", "curves": True})
    assert ran(path, tmp_path / "out") == 0
    (row,) = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    (metrics,) = tmp_path.glob("out/rows/*/*/*/run/metrics.jsonl")
    valid = [line for line in map(json.loads, metrics.read_text().splitlines()) if "valid" in line]
    assert [line["objective"] for line in valid] == ["ar", "mdlm", "mdlm", "mdlm"]
    assert [point["valid"] for point in row["curve"]] == [line["valid"] for line in valid[1:]]
