"""`unmask frontier` as a person meets it."""

import json
import re
import subprocess
import sys

import pytest

import tiny
import unmask
from unmask.cli.frontier import Settings, recipes_of
from unmask.errors import UserError
from unmask.sampling.recipe import recipe_record
from unmask.views.frontier import by_sampler

pytestmark = pytest.mark.slow  # pictures


def test_a_frontier_has_a_point_for_each_recipe(runs, command, tmp_path):
    options = ["--samplers", "first-hitting", "ancestral", "--steps", 2, 4, "--temperatures", 1, 0.5, "--n", 3]
    out = tmp_path / "frontier"
    code, printed, _ = command("frontier", runs / "mine", "--judge", runs / "ar", *options, "--out", out)
    assert code == 0
    assert printed.split() == [str(tmp_path / f"frontier.{kind}") for kind in ("json", "png", "html")]
    content = json.loads((tmp_path / "frontier.json").read_text())
    assert not content["partial"]
    points = {(point["sampler"], point["steps"], point["temperature"]): point for point in content["frontier"]}
    assert len(points) == 2 * (1 + 2)
    assert points["first-hitting", None, 1.0]["calls"] == tiny.LENGTH
    assert points["ancestral", 2, 1.0]["calls"] <= 2
    assert content["record"]["judge"]["objective"] == "ar"
    assert all(point["standard_error"] > 0 and point["definition"] == "pooled" for point in points.values())
    assert (tmp_path / "frontier.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "frontier.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert page.count("<td>ancestral</td>") == 4
    assert "Partial" not in page


def test_a_stopped_frontier_keeps_its_points_and_says_so(runs, command, monkeypatch, tmp_path):
    from unmask.cli import frontier

    real, done = frontier.point, []

    def point(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(real(*arguments))
        return done[0]

    monkeypatch.setattr(frontier, "point", point)
    options = ["--samplers", "groups", "--steps", 2, 3, "--n", 2, "--out", tmp_path / "stopped"]
    code, _, err = command("frontier", runs / "mine", "--judge", runs / "ar", *options)
    assert code == 0
    assert "kept" in err
    content = json.loads((tmp_path / "stopped.json").read_text())
    assert content["partial"]
    assert len(content["frontier"]) == 1
    assert "Partial: it was stopped" in (tmp_path / "stopped.html").read_text()


@pytest.mark.parametrize(
    "model, judge, options, words",
    [
        ("mine", "ar", ["--samplers", "ancesral"], "Did you mean 'ancestral'"),
        ("mine", "mine", [], "left to right"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(runs, command, model, judge, options, words):
    code, _, err = command("frontier", runs / model, "--judge", runs / judge, *options)
    assert code == 2
    assert words in err


def test_the_models_default_is_a_point_of_its_own_and_its_settings_hold_for_the_others(runs):
    model = unmask.load(runs / "mine").with_sampling(sampler="entropy", temperature=0.8, top_p=0.9)
    found = [recipe_record(model, one) for one in recipes_of(model, Settings("", "", steps=(2, 3)))]
    others = [(name, steps) for name in ("ancestral", "groups", "confidence") for steps in (2, 3)]
    assert [(one["sampler"], one["steps"]) for one in found] == [("entropy", None), *others]
    assert {(one["temperature"], one["top_p"]) for one in found} == {(0.8, 0.9)}
    plain = [
        recipe_record(model, one) for one in recipes_of(model, Settings("", "", plain=True, temperatures=(1, 0.5)))
    ]
    assert plain[0]["sampler"] == "first-hitting"
    assert {(one["temperature"], one["top_p"]) for one in plain} == {(1, 1), (0.5, 1)}


def test_caches_are_tried_beside_none(runs):
    model, caches = unmask.load(runs / "mine"), ("interval:every=4", "dual")
    settings = Settings("", "", samplers=("first-hitting",), plain=True, caches=caches)
    recipes = list(recipes_of(model, settings))
    assert [recipe.cache for recipe in recipes] == [None, *caches]
    points = [{"sampler": recipe.sampler, "temperature": 1.0, "cache": recipe.cache} for recipe in recipes]
    assert list(by_sampler(points)) == [
        "first-hitting, T = 1",
        "first-hitting, interval:every=4, T = 1",
        "first-hitting, dual, T = 1",
    ]
    with pytest.raises(UserError, match="duel"):
        list(recipes_of(model, Settings("", "", caches=("duel",))))


def test_a_judge_that_is_nowhere_is_refused_before_transformers_is_imported(tmp_path):
    code = (
        "import sys; from unmask.cli.main import main; "
        "code = main(['quality', 'samples.txt', '--judge', 'there-is-no-such-judge']); "
        "sys.exit(code if 'transformers' not in sys.modules else 1)"
    )
    (tmp_path / "samples.txt").write_text("a b c\nd e f\n")
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 2, out.stderr
    assert "the judge there-is-no-such-judge cannot be loaded" in out.stderr
