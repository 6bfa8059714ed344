"""Corpora by name: a path first, then the files below the data root, then the hub; or the files that are missing."""

import json
import lzma

import pytest

from unmask.errors import UserError
from unmask.text.corpus.documents import FileLayout, Piece
from unmask.text.corpus.manifest import prepared_folder
from unmask.text.corpus.named import NAMED, corpus_name, data_root, part_of
from unmask.text.corpus.sources import gather
from unmask.text.corpus.tokenized import whole_documents


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "root"


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def documents(place, layout=None):
    """The documents of each split, those that are empty left out."""
    with gather(place) as sources:
        found = {}
        for source in sources:
            some = [text for text in whole_documents(source.pieces(layout or FileLayout())) if text]
            found.setdefault(source.split, []).extend(some)
        return found


def test_names_are_read_however_they_are_written():
    assert corpus_name("OpenWebText") == corpus_name("owt") == "openwebtext"
    assert corpus_name("WikiText-103") == corpus_name("wikitext_103") == "wikitext103"
    assert corpus_name("my_texts") is None
    assert all(corpus_name(name) == name for name in NAMED)


def test_the_files_that_the_publishers_made_are_read_by_split_and_detokenized(root):
    put(root / "ptb" / "ptb.train.txt", " it 's <unk> \n he did n't \n")
    put(root / "ptb" / "ptb.valid.txt", " a year \n")
    put(root / "ptb" / "README.txt", "not data")
    assert documents("ptb") == {"train": ["it's ?", "he didn't"], "valid": ["a year"]}
    put(root / "lm1b" / "training-monolingual" / "news.en-00001-of-00100", "It 's late .\nSo what ?\n")
    put(root / "lm1b" / "heldout" / "news.en.heldout-00000-of-00050", "Oh yes .\n")
    assert documents("LM1B") == {"train": ["It's late.", "So what?"], "test": ["Oh yes."]}


def test_raw_wikitext_keeps_its_line_ends_and_is_preferred_to_its_tokens(root):
    (root / "wikitext2").mkdir(parents=True)
    with lzma.open(root / "wikitext2" / "wiki.train.tokens.xz", "wt") as file:
        file.write(" = A = \n\n <unk> @-@ b \n")
    put(root / "wikitext2" / "wiki.test.raw", " c \n")
    assert documents("wikitext-2") == {None: [" = A =\n", " <unk>-b\n"]}, "a test set alone is no corpus"
    put(root / "wikitext2" / "wiki.train.raw", " = A = \n\n a @-@ b \n")
    assert documents("wikitext-2") == {"train": [" = A =\n", " a-b\n"], "test": [" c\n"]}


def test_plain_names_and_tables_are_taken_too_with_the_corpus_own_field(root):
    put(root / "ptb" / "train.jsonl", json.dumps({"sentence": "he is n't", "other": "x"}))
    put(root / "ptb" / "test.jsonl", json.dumps({"sentence": "b", "other": "y"}))
    assert documents("ptb") == {"train": ["he isn't"], "test": ["b"]}
    assert documents("ptb", FileLayout(field="other")) == {"train": ["x"], "test": ["y"]}


def test_text8_is_cut_into_its_usual_parts():
    pieces = [Piece("abcd", False, 0), Piece("efgh", False, 0), Piece("ij", True, 0)]
    assert "".join(piece.text for piece in part_of(iter(pieces), 0, 6)) == "abcdef"
    middle = list(part_of(iter(pieces), 3, 9))
    assert "".join(piece.text for piece in middle) == "defghi"
    assert [piece.last for piece in middle] == [False, False, True]
    with pytest.raises(UserError, match="10 characters; its part from 10 to 12"):
        list(part_of(iter(pieces), 10, 12))
    spans = list(NAMED["text8"].characters.values())
    assert spans == [(0, 90_000_000), (90_000_000, 95_000_000), (95_000_000, 100_000_000)]


def test_one_file_is_cut_and_files_per_split_are_not(root, monkeypatch):
    monkeypatch.setitem(NAMED["text8"].characters, "train", (0, 3))
    monkeypatch.setitem(NAMED["text8"].characters, "valid", (3, 4))
    monkeypatch.setitem(NAMED["text8"].characters, "test", (4, 6))
    put(root / "text8" / "text8", "abcdefgh")
    assert documents("text8") == {"train": ["abc"], "valid": ["d"], "test": ["ef"]}
    (root / "text8" / "text8").unlink()
    put(root / "text8" / "train.txt", "abcdefgh")
    put(root / "text8" / "test.txt", "xyz")
    assert documents("text8") == {"train": ["abcdefgh"], "test": ["xyz"]}


def test_a_path_wins_over_a_name(root, tmp_path):
    put(root / "ptb" / "ptb.train.txt", "below the root")
    put(tmp_path / "ptb" / "a.txt", "here")
    assert documents("ptb") == {None: ["here"]}


def test_what_cannot_be_fetched_is_asked_for_by_file_and_folder(root, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    for name, wanted in (("ptb", "ptb.train.txt"), ("openwebtext", "train-"), ("tinystories", "TinyStories-train")):
        with pytest.raises(UserError, match=f"cannot read the data set.*put its files into .*root/{name}.*{wanted}"):
            documents(name)
    with pytest.raises(UserError, match="corpora with names of their own: lm1b, openwebtext"):
        documents("openwebtxt")


def test_a_folder_prepared_under_the_name_is_the_corpus(root, tmp_path):
    assert prepared_folder("c4") is None
    put(root / "c4" / "manifest.json", "{}")
    assert prepared_folder("c4") == root / "c4"
    put(tmp_path / "c4" / "a.txt", "a path wins")
    assert prepared_folder("c4") is None


def test_the_data_root_is_the_flag_then_the_variable_then_data(root, monkeypatch, tmp_path):
    assert data_root(tmp_path) == tmp_path
    assert data_root() == root
    monkeypatch.delenv("UNMASK_DATA")
    assert str(data_root()) == "data"
