"""Revisions: names that pin one, what a download without one says, and the commit in every record.

The hub's own library reads a cache that the tests lay out by hand, without a network.
"""

import logging
import shutil

import pytest

from unmask import hub
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.evaluation.record import of_model
from unmask.hub import hub_origin, named_revision
from unmask.model.checkpoint import load
from unmask.model.model import shipped_models
from unmask.text.tokens.tokenizer import Tokenizer

OLD, NEW = "1" * 40, "2" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with owner/name: the branch main is at NEW, the tag v1 at OLD."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--owner--name"
    for commit, model in ((OLD, "stories"), (NEW, "stories-ar")):
        shutil.copytree(shipped_models()[model], place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(NEW)
    (place / "refs" / "v1").write_text(OLD)
    hub.announce.cache_clear()
    return tmp_path


def test_a_name_is_taken_apart():
    assert named_revision("owner/name") == ("owner/name", None)
    assert named_revision("owner/name#refs/pr/3") == ("owner/name", "refs/pr/3")
    assert named_revision("owner/name@v1") == ("owner/name", "v1")
    for wrong in ("owner/name#", "owner/name#a b", "owner/name#../x@", "owner/name#/x"):
        with pytest.raises(UserError, match=r"names no revision after its #.*owner/name#main"):
            named_revision(wrong)


@pytest.mark.parametrize("revision", ["v1", OLD])
@pytest.mark.parametrize("mark", ["#", "@"])
def test_a_revision_is_fetched_in_silence(cache, caplog, mark, revision):
    model = load(f"owner/name{mark}{revision}")
    assert model.objective.name == "mdlm"
    assert of_model(model)["hub"] == f"owner/name#{OLD}"
    assert Tokenizer.load(f"hf:owner/name{mark}{revision}").fingerprint == model.text_tokenizer().fingerprint
    assert not caplog.text


def test_without_a_revision_the_commit_is_said_once_and_recorded(cache, caplog, capsys):
    with caplog.at_level(logging.WARNING):
        model = load("owner/name")
        load("owner/name")
        Tokenizer.load("hf:owner/name")
    assert model.objective.name == "ar"
    assert of_model(model)["hub"] == f"owner/name#{NEW}"
    assert [record.getMessage() for record in caplog.records] == [
        f"unmask: owner/name is at commit {NEW[:12]}; write owner/name#{NEW} to have it again",
        f"unmask: hf:owner/name is at commit {NEW[:12]}; write hf:owner/name#{NEW} to have it again",
    ]
    assert main(["inspect", f"owner/name#{OLD}"]) == 0
    assert f"owner/name#{OLD}" in capsys.readouterr().out


def test_a_revision_that_does_not_exist_is_an_error_in_words(cache, capsys):
    assert main(["inspect", "owner/name#v9"]) == 2
    assert "there is no folder owner/name#v9, and the hub download failed" in capsys.readouterr().err
    with pytest.raises(UserError, match="cannot fetch the tokenizer 'owner/name#v9' from the hub"):
        Tokenizer.load("hf:owner/name#v9")
    assert main(["inspect", "owner/name#"]) == 2
    assert "names no revision after its #" in capsys.readouterr().err


def test_a_folder_outside_the_cache_has_no_origin(tmp_path):
    assert hub_origin(None) is None
    assert hub_origin(tmp_path) is None
    assert hub_origin(tmp_path / "snapshots" / OLD) is None
    assert of_model(load("stories"))["hub"] is None
