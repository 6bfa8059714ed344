"""A classification task is a measurement of a study: each row's model is fine-tuned, and one row begins anew."""

import json

import pytest
from tiny_study import TINY, ran, written

pytestmark = pytest.mark.slow


def test_a_row_s_model_is_fine_tuned_with_several_seeds(tmp_path):
    measure = {"verb": "classify", "arguments": ["{root}/mood.csv"], "options": {"seeds": 2, "epochs": 1}}
    column = {
        "name": "accuracy",
        "measure": "mood",
        "value": "valid.accuracy.mean",
        "error": "valid.accuracy.deviation",
        "trials": "valid.accuracy.values",
    }
    rows = [TINY["row"][1], {"name": "anew", "of": "AR", "options": {"mood": {"scratch": True}}}]
    path = written(tmp_path / "study", measure={"mood": measure}, column=[column], row=rows, compare={"to": "AR"})
    lines = [f"the {'cat' if i % 2 else 'dog'} sat,{i % 2}\n" for i in range(24)]
    (tmp_path / "study" / "mood.csv").write_text("text,label\n" + "".join(lines))
    assert ran(path, tmp_path / "out") == 0
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["complete"] for row in table["rows"]] == [True, True]
    for row in table["rows"]:
        (cell,) = row["cells"]
        record = json.loads((tmp_path / "out" / cell["records"][0]).read_text())
        assert cell["value"] == record["valid"]["accuracy"]["mean"]
        assert cell["error"] == record["valid"]["accuracy"]["deviation"]
        assert record["settings"]["tune"]["scratch"] == (row["name"] == "anew")
        assert len(record["trials"]) == 2
    first, second = (row["cells"][0] for row in table["rows"])
    assert first["less"] is None
    apart = [b - a for a, b in zip(first["trials"], second["trials"], strict=True)]
    assert len(apart) == 2
    assert second["less"]["difference"] == pytest.approx(sum(apart) / 2)
    assert second["less"]["error"] == pytest.approx(abs(apart[1] - apart[0]) / 2)
    assert "accuracy, less AR" in (tmp_path / "out" / "table.md").read_text()
