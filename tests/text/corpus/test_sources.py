"""A file, a folder, a glob, standard input, a data set: the same documents in an order nobody disputes."""

import io
import json
import sys

import pytest

from unmask.errors import UserError
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.sources import gather, texts


def names(place) -> list[str]:
    with gather(place) as sources:
        return [source.name for source in sources]


def content(place, **layout) -> list[str]:
    with gather(place) as sources:
        return list(texts(sources, FileLayout(**layout), limit=10**9))


@pytest.fixture
def folder(tmp_path):
    for name in ["b.txt", "a.txt", "deep/c.jsonl", "README.md", ".hidden.txt", "notes"]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"text": "from jsonl"}' if name.endswith("jsonl") else f"in {name}")
    return tmp_path


def test_a_folder_gives_the_files_of_known_endings_sorted_and_no_hidden_ones(folder):
    assert names(folder) == ["a.txt", "b.txt", "deep/c.jsonl"]
    assert content(folder) == ["in a.txt", "in b.txt", "from jsonl"]


def test_a_glob_gives_exactly_what_it_matches(folder):
    assert names(f"{folder}/*") == ["README.md", "a.txt", "b.txt", "notes"]
    assert names(f"{folder}/**/*.jsonl") == ["deep/c.jsonl"]


def test_a_single_file_of_any_ending_is_read_as_text(folder):
    assert content(folder / "notes") == ["in notes"]


def test_standard_input_is_read_like_a_file(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\nworld")))
    assert content("-", documents="line") == ["hello", "world"]


def test_a_hub_data_set_is_read_through_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "set"
    data.mkdir()
    for split, count in (("train", 3), ("test", 1)):
        rows = [json.dumps({"text": f"{split} {i}"}) + "\n" for i in range(count)]
        (data / f"{split}.jsonl").write_text("".join(rows))
    assert content(f"hf:{data}") == ["train 0", "train 1", "train 2"]
    assert content(f"hf:{data}@test") == ["test 0"]
    with gather(f"hf:{data}") as [train], gather(f"hf:{data}@test") as [test]:
        assert train.sha256() != test.sha256()
        assert train.sha256() == train.sha256()


def test_a_hub_data_set_that_cannot_be_read_is_an_error_without_a_traceback(tmp_path):
    with pytest.raises(UserError, match="cannot read the data set"):
        content(f"hf:{tmp_path}/absent")


def test_files_named_for_splits_are_believed_if_one_is_for_training(tmp_path):
    for name in ("ptb.train.txt", "ptb.valid.txt", "TinyStories-val.txt", "set_test.txt", "more.txt"):
        (tmp_path / name).write_text("x")
    with gather(tmp_path) as sources:
        assert {source.name: source.split for source in sources} == {
            "ptb.train.txt": "train",
            "ptb.valid.txt": "valid",
            "TinyStories-val.txt": "valid",
            "set_test.txt": "test",
            "more.txt": "train",
        }
    (tmp_path / "ptb.train.txt").unlink()
    with gather(tmp_path) as sources:
        assert {source.split for source in sources} == {None}


def test_texts_stops_soon_after_its_limit(tmp_path):
    for i in range(5):
        (tmp_path / f"{i}.txt").write_text("x" * 10)
    with gather(tmp_path) as sources:
        assert len(list(texts(sources, FileLayout(), limit=15))) == 2


def test_missing_and_empty_places_are_errors_that_say_so(tmp_path):
    for place, message in (
        (tmp_path / "absent", "does not exist"),
        (tmp_path, "contains no data. Searched for files ending in txt"),
        (f"{tmp_path}/*.txt", "no file matches"),
    ):
        with pytest.raises(UserError, match=message):
            names(place)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match="is empty"):
        names(tmp_path)
    (tmp_path / "b.txt").write_text("b")
    assert names(tmp_path) == ["a.txt", "b.txt"]


def test_empty_standard_input_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UserError, match="standard input is empty"):
        names("-")
