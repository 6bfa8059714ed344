"""The parts of a run's report."""

import json

import pytest

import unmask
from unmask.views import report
from unmask.views.frontier import PARTIAL


def test_a_folder_without_metrics_has_no_learning_curves(tmp_path):
    assert report.learning(tmp_path) == []


@pytest.mark.slow
def test_a_run_has_learning_curves_and_a_frontier_its_title(tmp_path, points):
    line = {"step": 1, "steps": 1, "loss": 9, "bound": 9, "seconds": 60.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert [part.title for part in report.learning(tmp_path)] == ["Learning curves"]
    content = {"frontier": points, "definition": "pooled", "partial": True, "record": {"seed": 3}}
    part = report.of_frontier(content)
    assert part.title == "Quality against cost"
    assert part.warnings[0] == PARTIAL
    assert part.record == {"seed": 3}


def test_a_result_keeps_its_lines_and_its_record():
    part = report.of_result("valid", iter([("perplexity", "3.00")]), {"seed": 3})
    assert (part.title, part.facts, part.record, part.opened) == (
        "valid",
        [("perplexity", "3.00")],
        {"seed": 3},
        False,
    )
    assert report.of_record({"seed": 3}).opened


def test_each_sample_is_a_film_with_its_caption_and_longer_text_gets_more_room(model):
    first, second = unmask.sample(model, n=2, length=12, seed=5)
    part = report.of_samples([first, second], model.tokenizer)
    assert [frame.title for frame in part.frames] == ["sample 0", "sample 1"]
    assert "12 forward passes, seed 5, row 1." in part.frames[1].html
    assert report.frame(first, model.tokenizer).height == 16 + 2 * first.text.count("\n")
