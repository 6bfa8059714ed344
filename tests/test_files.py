"""What is written is there as a whole or not at all; drafts are told from other files and cleared."""

import os

import pytest

from unmask.errors import UserError
from unmask.files import appearing, clear_drafts, draft_of, is_draft, write_json, write_whole


@pytest.mark.parametrize("write", [write_whole, lambda path, text: write_json(path, {"text": text})])
def test_a_file_that_cannot_be_written_stays_as_it_was_and_leaves_no_draft(tmp_path, monkeypatch, write):
    path = tmp_path / "file"
    write_whole(path, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"could not write .*file: No space left"):
        write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_an_error_in_plain_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="could not write"), appearing(tmp_path / "file" / "folder"):
        pass


def test_whoever_may_read_a_new_file_may_read_the_files_of_a_folder(tmp_path):
    (tmp_path / "usual").write_text("")
    with appearing(tmp_path / "model") as draft:
        (draft / "weights").write_text("")
        (draft / "weights").chmod(0o600)
        (draft / "part").mkdir()
    assert (tmp_path / "model" / "weights").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert os.access(tmp_path / "model" / "part", os.X_OK)


def test_drafts_are_removed_and_nothing_else(tmp_path):
    names = [".hidden", "plain", ".draft-1", "run.draft-1"]
    for name in names:
        (tmp_path / name).write_text("")
    draft_of(tmp_path / "file").write_text("half")
    draft_of(tmp_path / "step-00000003").mkdir()
    (draft_of(tmp_path / "step-00000003") / "model.safetensors").write_text("half")
    draft_of(tmp_path / "link").symlink_to("nowhere")
    (tmp_path / ".replaced.old-17").mkdir()
    (tmp_path / "replaced").mkdir()
    assert sum(map(is_draft, tmp_path.iterdir())) == 4
    clear_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "replaced"])


def test_a_folder_whose_replacement_was_cut_short_gets_its_name_back(tmp_path):
    (tmp_path / ".model.old-17").mkdir()
    (tmp_path / ".model.old-17" / "config.json").write_text("{}")
    (tmp_path / ".model.draft-17").mkdir()
    clear_drafts(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["model", "model/config.json"]
