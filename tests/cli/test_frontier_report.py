"""The frontier and the report as a person meets them."""

import json
import re

import pytest

import tiny
from unmask.cli.main import main

pytestmark = pytest.mark.slow  # pictures


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tiny.checkpoint(folder / "mine" / "best")
    tiny.checkpoint(folder / "ar", objective="ar")
    steps = [{"step": s, "steps": 1, "loss": 9 - s, "bound": 9 - s, "seconds": 60.0} for s in range(1, 6)]
    (folder / "mine" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    (folder / "text.txt").write_text("abba cab. bad, cafe\n" * 5)
    return folder


def said(capsys, *arguments):
    code = main([str(one) for one in arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_a_frontier_has_a_point_for_each_recipe_and_the_report_shows_all(run, capsys):
    mine = run / "mine"
    options = ["--samplers", "first-hitting", "ancestral", "--steps", 2, 4, "--temperatures", 1, 0.5, "--n", 3]
    code, out, _ = said(capsys, "frontier", mine, "--judge", run / "ar", *options, "--out", mine / "frontier")
    assert code == 0
    assert out.split() == [str(mine / f"frontier.{kind}") for kind in ("json", "png", "html")]
    found = json.loads((mine / "frontier.json").read_text())
    assert not found["partial"]
    points = {(one["sampler"], one["steps"], one["temperature"]): one for one in found["frontier"]}
    assert len(points) == 2 * (1 + 2)
    assert points["first-hitting", None, 1.0]["calls"] == tiny.LENGTH
    assert points["ancestral", 2, 1.0]["calls"] <= 2
    assert found["record"]["judge"]["objective"] == "ar"
    assert all(one["standard_error"] > 0 and one["definition"] == "pooled" for one in points.values())
    assert (mine / "frontier.png").read_bytes()[:4] == b"\x89PNG"
    alone(mine / "frontier.html")

    said(capsys, "evaluate", mine, run / "text.txt", "--out", mine / "valid.json")
    said(capsys, "quality", mine, "--judge", run / "ar", "--n", 2, "--out", mine / "quality.json")
    code, out, _ = said(capsys, "report", mine, "--samples", 2)
    assert code == 0
    page = alone(mine / "report.html")
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [
        "Learning curves",
        "Quality against cost",
        "quality",
        "valid",
        "Samples, as they emerge",
        "Record",
    ]
    bound = json.loads((mine / "valid.json").read_text())["nats_per_token"]
    assert f"{bound:.4f} ±" in page
    assert page.count("<iframe") == page.count("</iframe>") == 2


def alone(path):
    """The page, which asks for nothing from anywhere."""
    page = path.read_text()
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "@import" not in page
    return page


def test_a_stopped_frontier_keeps_its_points_and_says_so(run, capsys, monkeypatch):
    from unmask.cli import frontier

    real, done = frontier.point, []

    def point(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(real(*arguments))
        return done[0]

    monkeypatch.setattr(frontier, "point", point)
    out = run / "stopped"
    options = ["--samplers", "groups", "--steps", 2, 3, "--n", 2, "--out", out]
    code, _, err = said(capsys, "frontier", run / "mine", "--judge", run / "ar", *options)
    assert code == 0
    assert "kept" in err
    found = json.loads(out.with_suffix(".json").read_text())
    assert found["partial"]
    assert len(found["frontier"]) == 1


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["frontier", "{run}/mine", "--judge", "{run}/ar", "--samplers", "ancesral"], "Did you mean 'ancestral'"),
        (["frontier", "{run}/mine", "--judge", "{run}/mine"], "left to right"),
        (["report", "{run}/nowhere"], "no folder"),
        (["report", "{run}/mine", "--results", "{run}/text.txt"], "not JSON"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(run, capsys, arguments, words):
    code, _, err = said(capsys, *(one.format(run=run) for one in arguments))
    assert code == 2
    assert words in err
