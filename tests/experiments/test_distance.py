"""Distances to AR are taken at equal compute, and the paper's points are those of its Table 1."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

FILE = spec_from_file_location("distance", Path(__file__).parents[2] / "experiments" / "distance.py")
distance = module_from_spec(FILE)
FILE.loader.exec_module(distance)


def table(*rows):
    cells = [
        {"name": name, "group": group, "changes": {"flops": flops}, "cells": [{"value": value}, {"value": None}]}
        for name, group, flops, value in rows
    ]
    return {"columns": [{"name": "nats"}, {"name": "left to right"}], "rows": cells}


ROWS = table(("a", "AR", 1e13, 3.0), ("b", "MDLM", 1e13, 4.0), ("c", "MDLM", 1e14, 3.5), ("d", "SEDD", 1e14, 3.6))


def test_a_row_without_an_ar_row_of_its_compute_has_no_distance():
    assert distance.distances(ROWS, "nats") == {"MDLM": [(1e13, 1.0)]}
    assert distance.distances(ROWS, "left to right") == {}


def test_the_paper_s_points_and_a_picture(tmp_path, monkeypatch, capsys):
    (tmp_path / "table.json").write_text(json.dumps(ROWS))
    out = tmp_path / "distance.png"
    monkeypatch.setattr(sys, "argv", ["distance.py", str(tmp_path / "table.json"), "--out", str(out)])
    distance.main()
    assert out.is_file()
    assert "MDLM, bound: 1e+13 FLOP, +1.000" in capsys.readouterr().out
    assert [nats for _, nats in distance.PAPER] == pytest.approx([0.192, 0.098], abs=5e-4)
