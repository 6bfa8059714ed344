"""`unmask report` of several runs as a person meets it; the curves themselves: tests/views/test_curves.py."""

import json

import pytest

from unmask.cli.main import main


def write(folder, lines):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "lo')
    return folder


def a_run(folder):
    steps = [{"step": s, "steps": 1, "loss": 9 - s, "bound": 9 - s, "seconds": 3600.0} for s in range(1, 6)]
    return write(folder, [*steps, {"step": 4, "valid": 5.25, "error": 0.5}])


@pytest.mark.slow
def test_curves_become_a_picture_and_a_page_that_needs_nothing_else(tmp_path, capsys):
    first, second = a_run(tmp_path / "one"), a_run(tmp_path / "<two>")
    assert main(["report", str(first), str(second), "--out", str(tmp_path / "new" / "curves")]) == 0
    assert "curves.png" in capsys.readouterr().out
    assert (tmp_path / "new" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "new" / "curves.html").read_text()
    assert "5.2500 ± 0.5000" in page
    assert "5.2500 at step 4" in page
    assert "<td>5.00</td>" in page  # hours
    assert "<two>" not in page
    assert "<script" not in page
    assert 'src="' not in page


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path), str(tmp_path)]) == 2
    assert "holds no metrics.jsonl" in capsys.readouterr().err
    assert main(["report", *2 * [str(write(tmp_path / "empty", []))]]) == 2
    assert "no step to draw yet" in capsys.readouterr().err
    assert main(["report", *2 * [str(a_run(tmp_path / "one"))], "--smooth", "1"]) == 2
    assert "smooth must lie in [0, 1)" in capsys.readouterr().err
