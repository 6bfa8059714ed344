"""Pictures of a study: distances are in nats on one axis, and every record of the docs can be drawn."""

import json
from math import log
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.views.figure import svg
from unmask.views.study_picture import curves_beside, picture

RECORDS = Path(__file__).parents[2] / "docs" / "records"
COLUMNS = [{"name": "perplexity", "unit": "", "digits": 2}, {"name": "nats", "unit": "per token", "digits": 3}]


def row(name, nats, error, published):
    cells = [
        {"value": None, "error": None, "published": published},
        {"value": nats, "error": error, "published": None},
    ]
    return {"name": name, "cells": cells}


def table(**asked):
    rows = [row("AR", 3.0, 0.0, 20.0), row("MDLM", 4.0, 0.1, 30.0), row("slow", 9.0, 0.5, None)]
    asked = {"kind": "distances", "from": "AR", "published": "perplexity", **asked}
    return {"title": "t", "columns": COLUMNS, "compare": {"to": "MDLM"}, "picture": asked, "rows": rows}


def dots(figure):
    """Every point that is drawn, as (x, marker)."""
    lines = figure.axes[0].get_lines()
    return {(round(float(line.get_xdata()[0]), 6), line.get_marker()) for line in lines if len(line.get_xdata()) == 1}


def test_distances_are_nats_above_one_row_for_measured_and_published_numbers():
    points = dots(picture(table()))
    assert {(0.0, "o"), (1.0, "o"), (6.0, "o"), (0.0, "s"), (round(log(30 / 20), 6), "s")} <= points


def test_a_distance_beyond_the_limit_is_an_arrow_at_the_edge_with_its_number():
    figure = picture(table(limit=2.0))
    assert (2.0, ">") in dots(figure)
    assert (6.0, "o") not in dots(figure)
    assert "+6.00 ± 0.50" in [text.get_text() for text in figure.axes[0].texts]


def test_distances_from_a_row_without_a_number_leave_that_series_out():
    assert not {mark for _, mark in dots(picture(table(**{"from": "slow"})))} & {"s"}


def test_distances_from_a_row_that_does_not_exist_are_refused():
    with pytest.raises(UserError, match="MDLN"):
        picture(table(**{"from": "MDLN"}))


def heights(axes):
    """Every dot of `columns`, by row: its heights without its error bars."""
    return {bars.get_label(): [round(float(y), 6) for y in bars[0].get_ydata()] for bars in axes.containers}


def test_columns_are_dots_and_with_a_row_to_start_from_the_logarithms_of_ratios():
    asked = {"kind": "columns", "columns": ["perplexity", "nats"]}
    measured, published = picture({**table(), "picture": asked}).axes
    assert heights(measured) == {"AR": [3.0], "MDLM": [4.0], "slow": [9.0]}
    assert heights(published) == {"AR": [20.0], "MDLM": [30.0], "slow": []}
    measured, published = picture({**table(), "picture": {**asked, "from": "AR"}}).axes
    assert heights(measured)["MDLM"] == [round(log(4 / 3), 6)]
    assert heights(published) == {"AR": [0.0], "MDLM": [round(log(30 / 20), 6)], "slow": []}


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.json")), ids=lambda path: path.stem)
def test_every_record_of_a_study_can_be_drawn(path):
    record = json.loads(path.read_text())
    if isinstance(record, dict) and "picture" in record and "fits" in record:
        assert picture(record).axes


def test_a_dollar_in_a_name_is_a_dollar_and_no_formula(tmp_path):
    columns = [{"name": r"perplexity $\frac{$", "unit": "$x$", "digits": 2}, COLUMNS[1]]
    rows = [row("$AR$", 3.0, 0.0, 20.0), row("M$L$M_{", 4.0, 0.1, 30.0)]
    for kind in (
        {"kind": "distances", "from": "$AR$", "published": columns[0]["name"]},
        {"kind": "bars", "y": "nats"},
    ):
        drawn = {"title": "$", "columns": columns, "compare": {}, "picture": kind, "rows": rows}
        assert "M$L$M_{" in svg(picture(drawn))


def test_beside_a_picture_every_row_has_a_learning_curve_if_the_study_wants_them():
    curve = [{"tokens": 8 * at, "passes": at, "valid": 5.0 - at, "error": 0.1} for at in (0.5, 1.0, 2.0)]
    several = table(curves=True)
    for one in several["rows"]:
        one |= {"group": "all", "curve": curve if one["name"] != "slow" else []}
    figure = curves_beside(several)
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["AR: 3.000", "MDLM: 3.000"]
    assert curves_beside({**several, "picture": {"kind": "bars"}}) is None
    several["rows"][0]["curve"] = [{**point, "valid": 300.0} for point in curve]
    far = curves_beside(several).axes[0]
    assert [line.get_label() for line in far.get_lines()] == ["AR: 300.000", "MDLM: 3.000"]
    assert far.get_ylim()[1] < 10, "one row far above does not flatten the others"
    assert curves_beside({**several, "rows": several["rows"][2:]}) is None
