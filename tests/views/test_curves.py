"""Learning curves: what is read of a run, and what is drawn of it."""

import json

import pytest

from unmask.errors import UserError
from unmask.views.curves import (
    HEAD,
    Curve,
    compare_runs,
    curves_figure,
    nearest_step,
    of_run,
    read_curve,
    row,
    smooth_curve,
)


def write(folder, lines):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "lo')
    return folder


@pytest.fixture
def run(tmp_path):
    steps = [{"step": s, "steps": 1, "loss": 9 - s, "bound": 9 - s, "seconds": 1800.0} for s in (10, 20, 30)]
    valid = [{"step": 12, "valid": 5.0, "error": 0.25}, {"step": 28, "valid": 5.5, "error": 0.5}]
    return write(tmp_path / "run", [*steps, *valid])


def test_a_run_is_read_as_training_and_validation_lines_without_one_that_was_cut_off(run):
    curve = read_curve(run)
    assert [line["step"] for line in curve.steps] == [10, 20, 30]
    assert [line["valid"] for line in curve.valid] == [5.0, 5.5]
    assert curve.hours == [0.5, 1.0, 1.5]


def test_a_run_without_steps_is_refused(tmp_path):
    with pytest.raises(UserError, match="no step to draw yet"):
        read_curve(write(tmp_path / "empty", [{"step": 1, "valid": 5.0, "error": 0.1}]))


def test_smoothing_keeps_a_constant_and_follows_a_change():
    assert smooth_curve([2.0] * 5, 0.9) == pytest.approx([2.0] * 5)
    assert smooth_curve([0.0, 1.0], 0.5) == pytest.approx([0, 2 / 3])
    assert smooth_curve([3.0, 1.0], 0.0) == [3, 1]


def test_a_row_has_the_latest_and_the_best_validation(run):
    cells = dict(zip(HEAD, row(read_curve(run)), strict=True))
    assert cells["step"] == "30"
    assert cells["validation"] == "5.5000 ± 0.5000"
    assert cells["best"] == "5.0000 at step 12"
    assert cells["hours"] == "1.50"
    bare = Curve("a", read_curve(run).steps, [])
    assert row(bare)[3:5] == ["", ""]


def test_a_validation_is_drawn_where_the_nearest_training_line_is(run):
    assert nearest_step([10, 20, 30], [0.5, 1.0, 1.5], 28) == 1.5
    assert nearest_step([10, 20, 30], [0.5, 1.0, 1.5], 12) == 0.5


@pytest.mark.slow
def test_the_figure_has_a_line_for_each_run_by_step_and_by_time(run):
    curves = [read_curve(run), Curve("other", read_curve(run).steps, [])]
    drawn = curves_figure(curves, smooth=0.0, log=True)
    by_step, by_time = drawn.axes
    assert by_step.get_xscale() == "log"
    assert by_step.get_ylabel() == "bound, nats per token"
    line = by_step.get_lines()[0]
    assert list(line.get_xdata()) == [10, 20, 30]
    assert list(line.get_ydata()) == [-1, -11, -21]
    assert list(by_time.get_lines()[0].get_xdata()) == [0.5, 1.0, 1.5]
    part = compare_runs(curves, drawn)
    assert [cells[0] for cells in part.rows] == [str(run), "other"]
    assert part.picture.startswith("<svg")


@pytest.mark.slow
def test_one_run_is_a_part_with_its_latest_numbers(run):
    facts = dict(of_run(run).facts)
    assert facts["bound in training"] == "-21.0000 nats per token"
    assert facts["validation"] == "5.5000 ± 0.5000 nats per token"
    assert facts["best"] == "5.0000 at step 12"


def phased(tmp_path):
    lines = [
        {
            "step": s,
            "steps": 1,
            "loss": 4.0 - s / 10,
            "bound": 4.0,
            "seconds": 1.0,
            "objective": "ar" if s < 3 else "mdlm",
        }
        for s in (1, 2, 3, 4)
    ]
    valid = [
        {"step": 2, "valid": 4.1, "error": 0.1, "objective": "ar"},
        {"step": 4, "valid": 4.7, "error": 0.1, "objective": "mdlm"},
    ]
    return read_curve(write(tmp_path / "warm", [*lines, *valid]))


def test_the_curve_is_broken_where_the_objective_changes_and_the_best_is_that_of_the_last_one(tmp_path):
    curve = phased(tmp_path)
    assert [[line["step"] for line in part.steps] for part in curve.phases] == [[1, 2], [3, 4]]
    assert dict(zip(HEAD, row(curve), strict=True))["best"] == "4.7000 at step 4"
    drawn = curves_figure([curve], smooth=0.0)
    lines = [list(line.get_xdata()) for line in drawn.axes[0].get_lines()]
    assert [1, 2] in lines
    assert [3, 4] in lines
    assert [3, 3] in lines, "the boundary"
    assert [1, 2, 3, 4] not in lines


@pytest.mark.parametrize("line", [{"loss": "low", "seconds": 1.0}, {"loss": 1.0}, {"loss": 1.0, "seconds": [1]}])
def test_a_number_that_is_none_is_named_with_its_step(tmp_path, line):
    with pytest.raises(
        UserError, match=r"metrics.jsonl cannot be drawn: at step 7 (loss|seconds) is .*, not a number"
    ):
        read_curve(write(tmp_path / "damaged", [{"step": 7, **line}]))
