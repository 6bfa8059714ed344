"""The text of a study: any files, one file per split."""

import pytest

from unmask.errors import UserError
from unmask.studies.corpus import documents_of, write_texts


def test_files_of_several_formats_become_one_text_per_split(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    (tmp_path / "b.jsonl").write_text('{"body": "four"}\n{"body": "  "}\n{"body": "five"}\n')
    data = {
        "train": [{"path": "a.txt", "documents": "line"}, {"path": "b.jsonl", "field": "body"}],
        "test": [{"path": "a.txt", "documents": "line", "limit": 2}],
    }
    write_texts(data, tmp_path, tmp_path / "out")
    assert (tmp_path / "out/train.txt").read_text().split("\n<|endoftext|>\n")[:-1] == [
        *("one", "two", "three", "four", "five")
    ]
    assert (tmp_path / "out/test.txt").read_text() == "one\n<|endoftext|>\ntwo\n<|endoftext|>\n"


def test_a_killed_process_leaves_no_draft_behind(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (draft := tmp_path / "out" / ".train.txt.draft-12345").parent.mkdir()
    draft.write_text("some")
    write_texts({"train": [{"path": "a.txt"}]}, tmp_path, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.txt"]


def test_detokenizers_are_applied(tmp_path):
    (tmp_path / "a.txt").write_text("the cat 's mat , and more")
    (text,) = documents_of({"path": "a.txt", "detokenize": "wikitext"}, tmp_path)
    assert text == "the cat's mat, and more"


def test_topics_need_a_split(tmp_path):
    splits = [list(documents_of({"path": f"python-topics:{name}"}, tmp_path)) for name in ("train", "valid", "test")]
    assert [len(split) > 4 for split in splits] == [True] * 3
    assert not set(splits[0]) & set(splits[1] + splits[2])
    with pytest.raises(UserError, match="python-topics:train"):
        list(documents_of({"path": "python-topics"}, tmp_path))


def test_no_documents(tmp_path):
    (tmp_path / "a.txt").write_text("  ")
    with pytest.raises(UserError, match=r"data\.train holds no documents"):
        write_texts({"train": [{"path": "a.txt"}]}, tmp_path, tmp_path / "out")


def test_sentences_of_one_document_are_joined(tmp_path):
    (tmp_path / "a.csv").write_text("story,text\na,One.\na,Two.\nb,Three.\n")
    one = {"path": "a.csv", "join": "story", "field": "text"}
    assert list(documents_of(one, tmp_path)) == ["One. Two.", "Three."]
    with pytest.raises(UserError, match="Did you mean 'story'"):
        list(documents_of({**one, "join": "stori"}, tmp_path))
