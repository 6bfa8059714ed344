"""A prepared folder is read as one stream, and refused when it is not what its manifest says."""

import json
import shutil

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.text.corpus.corpus import Corpus, splits
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.packed import pack_corpus
from unmask.text.corpus.prepare import prepare
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import gather
from unmask.text.tokens import vocabulary

BYTE = vocabulary.byte()
LINES = [f"line {i} " + "x" * (i % 5) for i in range(60)]


@pytest.fixture
def folder(tmp_path):
    return prepared("\n".join(LINES), tmp_path / "out")


def prepared(text, out):
    (path := out.parent / "a.txt").write_text(text)
    with gather(path) as sources:
        list(prepare(sources, BYTE, out, layout=FileLayout("line"), division=Division(0, 0, 50)))
    return out


def stream() -> list[int]:
    return [id for line in LINES for id in (*BYTE.encode(line.strip()), BYTE.eos)]


def test_any_stretch_of_the_stream_is_read_across_shards(folder):
    corpus, whole = Corpus.open(folder), stream()
    assert len(corpus.shards) > 5
    assert corpus.tokens == len(whole)
    for start, stop in [(0, 0), (0, 1), (7, 7), (0, len(whole)), (45, 260), (len(whole) - 1, len(whole))]:
        assert corpus.read(start, stop).tolist() == whole[start:stop]
    for start, stop in [(-1, 3), (5, 4), (0, len(whole) + 1)]:
        with pytest.raises(IndexError):
            corpus.read(start, stop)


def test_documents_are_read_by_number_without_their_end(folder):
    corpus = Corpus.open(folder)
    assert [BYTE.decode(corpus.document(i)) for i in range(corpus.documents)] == [s.strip() for s in LINES]
    with pytest.raises(IndexError):
        corpus.document(corpus.documents)


def test_a_document_that_spans_shards_has_its_whole_length_and_all_its_windows(tmp_path):
    texts = ["x" * 333_000, "y", "z" * 120_000]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    with gather(tmp_path / "a.txt") as sources:
        list(prepare(sources, BYTE, tmp_path / "out", layout=FileLayout("line"), division=Division(0, 0, 50)))
    corpus = Corpus.open(tmp_path / "out")
    assert len(corpus.shards) > corpus.documents
    assert corpus.lengths().tolist() == [len(text) for text in texts]
    assert corpus.lengths(most=1).tolist()[:1] == [333_000]
    rows = pack_corpus(corpus, 40_000, "windows")
    letters = [set(map(chr, row)) for row in rows.rows(range(len(rows))).tokens.tolist()]
    assert letters == [{"x"}] * 8 + [{"z"}] * 3


def test_without_held_out_documents_the_end_of_the_stream_is_held_out(folder):
    train, valid = splits(folder, valid=0.1)
    whole = stream()
    assert valid.tokens == round(len(whole) * 0.1)
    joined = np.concatenate([train.read(0, train.tokens), valid.read(0, valid.tokens)])
    assert joined.tolist() == whole
    assert splits(folder, valid=0.1, least=200)[1].tokens == 200
    with pytest.raises(UserError, match="too little text"):
        splits(folder, least=len(whole) + 1)


def test_held_out_documents_are_used_if_they_are_enough(folder, tmp_path):
    with gather(tmp_path / "a.txt") as sources:
        list(prepare(sources, BYTE, tmp_path / "two", layout=FileLayout("line"), division=Division(0.3)))
    train, valid = splits(tmp_path / "two")
    assert valid.documents > 0
    assert train.documents + valid.documents == 60
    train, valid = splits(tmp_path / "two", least=valid.tokens + 1)
    assert valid.folder == tmp_path / "two"
    assert valid.stop is not None


def test_a_shard_that_is_missing_or_short_is_named(folder):
    path = folder / "shards" / Corpus.open(folder).shards[3].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"{path} has \d+ bytes where the manifest says"):
        Corpus.open(folder)
    path.unlink()
    with pytest.raises(UserError, match=f"{path} is missing"):
        Corpus.open(folder)


def test_a_folder_that_another_one_took_the_place_of_is_read_anew(folder, tmp_path):
    other = prepared("\n".join(LINES).upper(), tmp_path / "other")
    Corpus.open(other)  # checked already, so that nothing is read when it is opened in its new place
    Corpus.open(folder).read(0, 5)
    shutil.rmtree(folder)
    other.rename(folder)
    assert BYTE.decode(Corpus.open(folder).read(0, 6).tolist()) == "LINE 0"


def test_another_tokenizer_is_refused(folder):
    Corpus.open(folder).require(BYTE)
    with pytest.raises(UserError, match=r"prepared with another tokenizer \(259 ids"):
        Corpus.open(folder).require(vocabulary.dna())


def test_a_folder_without_a_manifest_an_unknown_split_and_another_format_are_errors(folder, tmp_path):
    with pytest.raises(UserError, match="make one with `unmask prepare`"):
        Corpus.open(tmp_path)
    with pytest.raises(UserError, match="Did you mean 'train'"):
        Corpus.open(folder, "trian")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(UserError, match="has format 99"):
        Corpus.open(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        Corpus.open(folder)
