"""The demo: text first; its folder goes, unless a stopped training has said how to continue there."""

from pathlib import Path

import pytest

from unmask.cli import demo


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(demo, "mkdtemp", lambda prefix: str(tmp_path / "demo"))
    return tmp_path / "demo"


def test_the_story_comes_first_and_the_training_has_a_limit(folder):
    verbs = [command for _, command in demo.commands(folder, demo.Settings())]
    assert verbs[0][:2] == ["sample", "stories"]
    (training,) = [command for command in verbs if command[0] == "train"]
    assert training[-2:] == ["--minutes", "1"]


def test_a_training_that_was_stopped_can_be_continued_in_its_folder(folder, monkeypatch):
    def stopped(command):
        if command[0] == "train":
            raise SystemExit(130)
        return 0

    monkeypatch.setattr(demo.main, "main", stopped)
    with pytest.raises(SystemExit):
        demo.run(demo.Settings())
    assert (folder / "topics" / "train.txt").is_file()


@pytest.mark.parametrize("code", [0, 130])
def test_the_folder_goes_at_the_end_and_when_another_command_is_stopped(folder, monkeypatch, code):
    monkeypatch.setattr(demo.main, "main", lambda command: code if command[0] == "infill" else 0)
    if code:
        with pytest.raises(SystemExit):
            demo.run(demo.Settings())
    else:
        demo.run(demo.Settings())
    assert not folder.exists()
