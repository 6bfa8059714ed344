"""Documents are found as each format means them, whatever the compression, and in bounded memory."""

import csv
import gzip
import json
import lzma
import random
import re
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unmask.errors import UserError
from unmask.evaluation.quality.assessment import read_samples
from unmask.text.corpus import decompress as streams
from unmask.text.corpus import documents
from unmask.text.corpus.documents import FileLayout, document_pieces
from unmask.text.corpus.prepare import choose
from unmask.text.corpus.sources import gather
from unmask.text.tokens import vocabulary

STORIES = ["One day.\nA cat.", "A dog  sat.", "naïve 貓"]


def read(path: Path, **layout) -> list[str]:
    """The documents of a file, put together from their pieces."""
    found, held = [], ""
    for piece in document_pieces(path, FileLayout(**layout)):
        held += piece.text
        if piece.last:
            found.append(held)
            held = ""
    assert held == "", "the last document has no end"
    return found


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_as(folder: Path, kind: str) -> Path:
    """The stories in one format."""
    path = folder / f"data.{kind}"
    if kind == "txt":
        return write(path, "\n<|endoftext|>\n".join(STORIES) + "\n<|endoftext|>")
    if kind == "jsonl":
        return write(path, "".join(json.dumps({"id": 1, "text": story}) + "\n" for story in STORIES))
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2, 3], "text": STORIES}), path)
        return path
    with path.open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t" if kind == "tsv" else ",")
        table.writerows([["id", "text"], *([1, story] for story in STORIES)])
    return path


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_documents(kind, tmp_path):
    assert [text for text in read(write_as(tmp_path, kind)) if text] == STORIES


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, zstandard.compress])
def test_compression_is_seen_from_the_bytes_not_the_name(compress, tmp_path):
    path = write_as(tmp_path, "txt")
    plain = read(path)
    path.write_bytes(compress(path.read_bytes()))
    assert read(path) == plain


def test_text_is_cut_into_documents_in_four_ways(tmp_path):
    path = write(tmp_path / "a.txt", "one\ntwo\r\n\r\nthree<end>four\n \n\nfive\n")
    assert read(path, documents="file") == ["one\ntwo\r\n\r\nthree<end>four\n \n\nfive\n"]
    assert read(path, documents="line") == ["one", "two", "", "three<end>four", "", "", "five", ""]
    assert read(path, documents="paragraph") == ["one\ntwo", "three<end>four", "five"]
    assert read(path, documents="separator", separator="<end>") == [
        "one\ntwo\r\n\r\nthree",
        "four\n \n\nfive",
    ]


def test_auto_uses_the_separator_where_it_stands_and_the_whole_file_otherwise(tmp_path):
    assert read(write(tmp_path / "a.txt", "a\n\nb")) == ["a\n\nb"]
    assert read(write(tmp_path / "b.txt", "a<|endoftext|>b")) == ["a", "b"]
    assert read(write(tmp_path / "c.txt", "")) == []


def test_fasta_sequences_are_documents_without_their_names(tmp_path):
    path = write(tmp_path / "a.fa", ">one chr\nACGT\nacgt\n>two\nNNNN\n")
    assert read(path) == ["ACGTacgt", "NNNN"]
    with pytest.raises(UserError, match="is not FASTA: line 1 is 'ACGT'"):
        read(write(tmp_path / "b.fa", "ACGT\n"))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    assert read(write(tmp_path / "a.txt", b"\xef\xbb\xbfhello")) == ["hello"]


def test_a_column_may_be_named_or_numbered(tmp_path):
    path = write(tmp_path / "a.csv", '3,"Title, one","two\nlines"\n4,b,c\n')
    assert read(path, field="3") == ["two\nlines", "c"]
    with pytest.raises(UserError, match="has 3 columns; column 4"):
        read(path, field="4")


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(["a", "bcd", "e", "\n", " ", "\n\n", "貓", "<s>", "<", "s>"]), max_size=60))
def test_small_chunks_and_small_pieces_change_no_document(tmp_path_factory, parts):
    text = "".join(parts)
    assume(not re.search(r"\s{5}", text))  # white space longer than a piece is not told from a document's edge
    path = write(tmp_path_factory.mktemp("cut") / "a.txt", text)
    units = ("file", "line", "paragraph", "separator")
    whole = {unit: read(path, documents=unit, separator="<s>") for unit in units}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", 3)
        patch.setattr(documents, "PIECE", 5)
        for unit in units:
            again = [text for text in read(path, documents=unit, separator="<s>") if text]
            assert again == [text for text in whole[unit] if text]


def test_a_long_document_has_the_same_tokens_in_pieces_as_in_one(tmp_path, monkeypatch):
    draw = random.Random(0)
    text = "".join(f"word{i % 7}'s" + draw.choice(" \n") * draw.randint(1, 9) for i in range(600))
    tokenizer = vocabulary.bpe([text], 400)
    monkeypatch.setattr(documents, "PIECE", 50)
    cut = list(document_pieces(write(tmp_path / "a.txt", text), FileLayout("file")))
    assert len(cut) > 100
    assert [id for piece in cut for id in tokenizer.encode(piece.text)] == tokenizer.encode(text)


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(megabytes: int) -> int:
        path = write(tmp_path / "big.txt", b"some words in a line\n" * (megabytes * 50_000))
        tracemalloc.start()
        for _ in document_pieces(path, FileLayout("file")):
            pass
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(24) < 1.2 * peak(6)


def bad(tmp_path, name, content, message, **layout):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message) as caught:
        read(path, **layout)
    assert str(path) in str(caught.value)


def test_bytes_that_are_not_utf8_are_named_with_file_and_offset(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK", 4)
    bad(tmp_path, "a.txt", "é".encode() * 5 + b"\xe9!", r"not UTF-8: byte 10 is 0xe9")
    bad(tmp_path, "b.txt", b"abc" + "貓".encode()[:2], r"not UTF-8: byte 3 is 0xe8")
    bad(tmp_path, "c.txt", gzip.compress(b"abcdef\xff"), "byte 6 of its decompressed text is 0xff")
    bad(tmp_path, "d.txt", "hello".encode("utf-16"), "is UTF-16, not UTF-8")


def test_a_binary_file_is_refused_by_the_byte_that_tells(tmp_path):
    bad(tmp_path, "a.txt", b"abc\x00def", "not a text file: byte 3 is zero")


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, zstandard.compress])
def test_an_archive_that_is_damaged_or_cut_short_is_refused(compress, tmp_path):
    packed = compress(b"some words in a line" * 100 + bytes(range(1, 128)))
    bad(tmp_path, "a.txt", packed[:8] + b"damaged!" + packed[16:], "damaged or cut short")
    for end in (-1, -9, 10):
        bad(tmp_path, "a.txt", packed[:end], "damaged or cut short")


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, zstandard.compress])
def test_archives_put_one_after_another_are_one_text(compress, tmp_path):
    path = write(tmp_path / "a.txt", compress(b"one ") + compress(b"two " * 50_000) + compress(b"three"))
    assert read(path) == ["one " + "two " * 50_000 + "three"]


def test_records_that_are_not_as_expected_are_named_by_line(tmp_path):
    bad(tmp_path, "a.jsonl", '{"text": "a"}\n{"text": \n', "line 2 of .* is not JSON")
    bad(tmp_path, "b.jsonl", '{"text": "a"}\n\n[1]\n', "line 3 of .* not a JSON object")
    bad(tmp_path, "c.jsonl", '{"texts": "a"}', "no field is called 'text'. Did you mean 'texts'")
    bad(tmp_path, "d.jsonl", '{"text": 3}', "not text but int")
    bad(tmp_path, "e.csv", "id,txt\n1,a\n", "no column is called 'text'. Did you mean 'txt'")
    bad(tmp_path, "f.parquet", b"no parquet", "cannot read")
    path = write_as(tmp_path, "parquet")
    with pytest.raises(UserError, match=re.escape(f"{path}: no column is called 'txt'. Did you mean 'text'?")):
        read(path, field="txt")


def test_an_unknown_way_to_find_documents_is_an_error_with_a_guess():
    with pytest.raises(UserError, match="Did you mean 'paragraph'"):
        FileLayout("paragraphs")
    with pytest.raises(UserError, match="separator between documents is empty"):
        FileLayout(separator="")


def test_a_missing_package_is_an_error_that_says_how_to_install_it():
    with pytest.raises(UserError, match=r"pip install .*\[train\]'"):
        streams.needs("no_such_package_at_all", "reading")


def test_a_molecule_of_a_smi_file_is_the_first_word_of_its_line(tmp_path):
    (tmp_path / "a.smi").write_text("CCO ethanol\r\n\nc1ccccc1\tbenzene ring\nC\n")
    assert [piece.text for piece in document_pieces(tmp_path / "a.smi", FileLayout())] == ["CCO", "c1ccccc1", "C"]
    whole = [piece.text for piece in document_pieces(tmp_path / "a.smi", FileLayout(documents="file"))]
    assert whole == ["CCO ethanol\r\n\nc1ccccc1\tbenzene ring\nC\n"]
    for name in ("a.smi", "a.txt"):
        (tmp_path / "a.txt").write_text("CCO\nc1ccccc1\n\nC\n")
        assert [one.joined for one in read_samples(tmp_path / name)] == ["CCO", "c1ccccc1", "C"]


def test_a_genome_for_a_vocabulary_of_proteins_is_refused(tmp_path):
    (tmp_path / "a.fa").write_text(">chr\n" + "ACGTTGCAN" * 60 + "\n")
    with gather(str(tmp_path / "a.fa")) as sources, pytest.raises(UserError, match="they are DNA"):
        choose("protein", sources)
