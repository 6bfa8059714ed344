"""Models that come with the package: found by name, small, with a card and a notice."""

import json

import pytest

import tiny
import unmask
from unmask.errors import UserError
from unmask.evaluation.quality.judges import judge
from unmask.model.checkpoint import find, load
from unmask.model.model import shipped_models

NAMES = {"stories": "mdlm", "stories-any-order": "any-order", "stories-ar": "ar"}


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_loads_by_name_and_proves_itself(name):
    model = unmask.load(name)
    assert model.self_test is not None
    assert model.ema
    assert model.objective.name == NAMES[name]
    assert model.spec.length == 128
    assert model.tokenizer.fingerprint == unmask.load("stories").tokenizer.fingerprint


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_is_small_and_has_its_papers(name):
    folder = shipped_models()[name]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 15e6
    assert "CDLA-Sharing-1.0" in (folder / "NOTICE").read_text(encoding="utf-8")
    assert len((folder / "README.md").read_text(encoding="utf-8")) > 1000
    settings = json.loads((folder / "unmask.json").read_text(encoding="utf-8"))["settings"]
    assert not any(str(settings[key]).startswith(("/", ".")) for key in ("data", "out", "init"))


@pytest.mark.parametrize("name", ["stories", "stories-any-order"])
def test_a_story_model_tells_a_story(name):
    text = unmask.sample(name, prompt="Once upon a time", seed=1)[0].text
    words = text.lower().split()
    assert text.startswith("Once upon a time")
    assert len(words) > 40
    assert {"the", "and"} <= set(words)


def test_the_autoregressive_one_is_a_judge():
    one = judge("stories-ar")
    assert one.about["objective"] == "ar"
    with pytest.raises(UserError, match="left to right"):
        judge("stories")


def test_a_checkpoint_of_that_name_comes_first_and_another_folder_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stories").mkdir()
    assert find("stories") == (shipped_models()["stories"], False)
    tiny.checkpoint(tmp_path / "mine")
    (tmp_path / "stories").rmdir()
    (tmp_path / "mine").rename("stories")
    assert load("stories").spec.length == tiny.LENGTH


def test_a_wrong_name_lists_the_models_there_are():
    with pytest.raises(UserError, match="stories, stories-any-order, stories-ar"):
        load("./storeis")
