"""Data of strangers, and disks that fail: the command line answers in words with exit code 2, without a traceback."""

import errno
import gzip
import io
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from attack.readers import attempt
from confined import confined, failures
from full_disk import files_at_most
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.text.corpus import decompress
from unmask.text.corpus.documents import PIECE, FileLayout, document_pieces
from unmask.text.corpus.examples import Columns, examples, read_examples
from unmask.text.corpus.records import rows_of
from unmask.text.tokens.vocabulary import dna

pytestmark = pytest.mark.slow


STORY = "Once upon a time there was a cat. " * 20
MEGABYTES = 64  # of text in a bomb


def table(**columns):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file, compression="zstd")
    return file.getvalue()


GZ, XZ, ZST = gzip.compress(STORY.encode()), lzma.compress(STORY.encode()), zstandard.compress(STORY.encode())
PARQUET = table(text=[STORY] * 20)
DEEP = '{"text": "a", "more": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
# Content of a file, options, and the words of the refusal.
REFUSED = {
    "cut.txt.gz": (GZ[:-20], (), "damaged or cut short"),
    "cut.txt.xz": (XZ[:-20], (), "damaged or cut short"),
    "cut.txt.zst": (ZST[:-5], (), "damaged or cut short"),
    "garbage.txt.gz": (GZ[:12] + b"garbage" * 20, (), "damaged or cut short"),
    "garbage.txt.xz": (XZ[:12] + b"garbage" * 20, (), "damaged or cut short"),
    "garbage.txt.zst": (ZST[:6] + b"garbage" * 20, (), "damaged or cut short"),
    "cut.parquet": (PARQUET[:-20], (), "cannot read"),
    "garbage.parquet": (b"PAR1" + b"garbage" * 20 + b"PAR1", (), "cannot read"),
    "flipped.parquet": (PARQUET[:40] + b"\xff" * 20 + PARQUET[60:], (), "cannot read"),
    "numbers.parquet": (table(text=[1, 2]), (), "not text but int"),
    "lists.parquet": (table(text=[["a"], ["b"]]), (), "not text but list"),
    "other.parquet": (table(words=["a"]), (), "no column is called 'text'"),
    "binary.txt": (b"abc\0def", (), "byte 3 is zero"),
    "wide.txt": (STORY.encode("utf-16"), (), "is UTF-16, not UTF-8"),
    "latin.txt": (b"caf\xe9", (), "not UTF-8: byte 3"),
    "empty.txt": (b"", (), "is empty"),
    "mac.csv": (b"text,label\ra,b\rc,d\r", (), "carriage return without a line feed"),
    "mixed.csv": (b"text\na\rb\n", (), "carriage return without a line feed"),
    "ragged.csv": (b"a,text\nb\n", (), "has 1 columns"),
    "superscript.csv": (b"text\na\n", ("--field", "²"), "no column is called '²'"),
    "digits.csv": (b"text\na\n", ("--field", "9" * 5_000), "no column is called '999"),
    "zero.csv": (b"text\na\n", ("--field", "0"), "column 0 was expected"),
    "deep.jsonl": (DEEP.encode(), (), "line 1 of .* nested more than 64 levels"),
    "half.jsonl": (b'{"text": "a \\ud800 b"}\n', (), "half of a surrogate pair"),
    "digits.jsonl": (b'{"text": ' + b"9" * 5_000 + b"}\n", (), "is not JSON"),
    "list.jsonl": (b"[1]\n", (), "not a JSON object"),
    "number.jsonl": (b'{"text": 1}\n', (), "not text but int"),
    "half.json": (b'{"text": "a"', (), "is not JSON"),
    "nameless.fa": (b"ACGT\n", (), "is not FASTA"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_data_file_is_refused_in_words_and_nothing_is_left_half_written(name, tmp_path, capsys):
    content, options, told = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    kind = "bpe" if name.startswith("half") else "byte"
    code = main([*prepare(tmp_path / name, tmp_path / "out", kind), *options])
    answer = " ".join(capsys.readouterr().err.split())
    assert code == 2, answer
    assert re.search(told, answer), answer
    assert not (tmp_path / "out" / "manifest.json").exists()


def prepare(source, out, tokenizer="byte"):
    return ["prepare", str(source), "--out", str(out), "--tokenizer", tokenizer, "--workers", "1"]


def refuses(arguments, **limits):
    """Whether a command ends with exit code 2, in a fork with limits."""

    def use():
        assert main([str(one) for one in arguments]) == 2

    return confined(use, **limits)


def test_a_number_that_is_not_json_in_another_field_does_not_matter(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": "b", "score": NaN, "other": "\\ud800"}\n')
    assert [(one.text, one.label) for one in examples(tmp_path / "a.jsonl", Columns())] == [("a", "b")]


def test_a_fifo_or_a_device_is_refused_and_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo.txt")
    for source in (tmp_path / "fifo.txt", "/dev/zero"):
        assert refuses(prepare(source, tmp_path / "out")) == "done"
        assert main(prepare(source, tmp_path / "out")) == 2
        assert "Pipe its text in, and give `-`" in capsys.readouterr().err
    with pytest.raises(UserError, match="not a regular file"):
        list(decompress.chunks(tmp_path / "fifo.txt"))


def test_a_file_name_that_is_not_utf8_is_refused(tmp_path, capsys):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text(STORY)
    assert main(prepare(tmp_path, tmp_path / "out")) == 2
    assert "is not UTF-8: rename the file" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pack", "most"),
    [(gzip.compress, 48), (lzma.compress, 48), (zstandard.compress, 160)],  # zstandard looks back over the whole text
)
def test_a_bomb_is_read_piece_by_piece(pack, most, tmp_path):
    path = tmp_path / "bomb.txt"
    path.write_bytes(pack(b"all work and no play\n" * ((MEGABYTES << 20) // 21)))
    assert path.stat().st_size < 1 << 20

    def read():
        assert sum(len(piece.text) for piece in document_pieces(path, FileLayout())) > (MEGABYTES << 20) - 21

    assert confined(read, memory=most << 20) == "done"


@pytest.mark.attack
@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.fa.gz"])
def test_rows_of_a_bomb_are_read_one_by_one(name, tmp_path):
    head, row = {
        "a.csv.gz": (b"text,label\n", b"a b,c\n"),
        "a.jsonl.gz": (b"", b'{"text": "a b", "label": "c"}\n'),
        "a.fa.gz": (b"", b">c\nAC\n"),
    }[name]
    (tmp_path / name).write_bytes(gzip.compress(head + row * 200_000))
    assert (tmp_path / name).stat().st_size < 1 << 17

    def read():
        assert sum(1 for _ in read_examples(tmp_path / name, Columns(), labels=False)) == 200_000

    assert confined(read, memory=40 << 20, seconds=60) == "done"


@pytest.mark.slow
def test_letters_of_a_long_sequence_are_counted_in_pieces():
    sequence = "ACGT" * (MEGABYTES << 18)

    def count():
        assert dna().replaced([sequence]) == {}

    assert confined(count, memory=5 * MEGABYTES << 20) == "done", "eight bytes per letter are 8 times its size"


def test_a_parquet_file_of_few_bytes_and_many_long_texts_is_read_one_by_one(tmp_path):
    (tmp_path / "a.parquet").write_bytes(table(text=["x" * (1 << 17)] * 1024))
    before, held, texts = pyarrow.total_allocated_bytes(), 0, 0
    for piece in document_pieces(tmp_path / "a.parquet", FileLayout()):
        held, texts = max(held, pyarrow.total_allocated_bytes() - before), texts + piece.last
    assert texts == 1024
    assert held < 10 << 20, "of 134 MB"


def test_a_line_that_does_not_fit_in_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(decompress, "LINE", 3 << 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"a" * (2 << 20) + b"\n" + b"b" * (2 << 20) + b"\r\nc\n\nd")
    assert [len(line.text) for line in decompress.lines(path)] == [2 << 20, 2 << 20, 1, 0, 1]
    path.write_bytes(b"a" * (5 << 20))
    with pytest.raises(UserError, match="a line of more than"):
        list(decompress.lines(path))


def test_a_sequence_on_one_line_is_cut_into_pieces(tmp_path):
    sequence = "ACGT" * 100_000
    (tmp_path / "a.fa").write_text(f">one\n{sequence}\n>two\nAC\n")
    pieces = list(document_pieces(tmp_path / "a.fa", FileLayout()))
    assert max(len(piece.text) for piece in pieces) <= 2 * PIECE
    assert "".join(piece.text for piece in pieces) == sequence + "AC"
    assert sum(piece.last for piece in pieces) == 2


def test_rows_of_a_table_may_hold_line_ends_in_quotes(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'text,label\r\n"a\nb",c\r\n"' + b"x" * 300_000 + b'",d\r\n')
    assert [row.cells[0][:3] for row in rows_of(tmp_path / "a.csv")] == ["text"[:3], "a\nb", "xxx"]


def test_a_place_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    story = tmp_path / "story.txt"
    story.write_text(STORY)
    for out in (story / "out", "/proc/unmask", f"/{'x' * 300}"):
        assert refuses(prepare(story, out)) == "done"


@pytest.mark.slow
def test_a_film_or_a_checkpoint_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    film = ["sample", "stories", "--prompt", "Once", "--length", "8"]
    (tmp_path / "full.html").symlink_to("/dev/full")
    assert refuses([*film, "--film", tmp_path / "full.html"]) == "done"
    assert refuses(["convert", "stories", tmp_path / "full.html" / "out"]) == "done"


@pytest.mark.parametrize("size", [0, 100, 1_000, 5_000, 10_000])
def test_a_disk_that_is_full_at_any_moment_leaves_nothing_half_written(size, tmp_path):
    """A limit on the size of files stands for the disk."""
    source, out = tmp_path / "story.txt", tmp_path / "out"
    source.write_text(STORY * 20)

    def use():
        with files_at_most(size):
            assert main(prepare(source, out)) == 2

    assert confined(use) == "done"
    assert not (out / "manifest.json").exists()
    assert confined(lambda: main(prepare(source, out))) == "done"
    assert (out / "manifest.json").exists()


@pytest.mark.slow
def test_a_full_disk_leaves_a_film_as_it_was_and_no_part_of_a_checkpoint(tmp_path):
    (tmp_path / "film.html").write_text("before")

    def use():
        film = ["sample", "stories", "--prompt", "Once", "--length", "8", "--film", str(tmp_path / "film.html")]
        with files_at_most(1_000):
            assert main(film) == 2
            assert main(["convert", "stories", str(tmp_path / "copy")]) == 2

    assert confined(use) == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["film.html"]
    assert (tmp_path / "film.html").read_text() == "before"


def test_output_that_cannot_be_written_ends_with_2():
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-m", "unmask", "--version"]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "unmask: No space left on device.\n"


def test_an_error_that_no_user_can_mend_keeps_its_traceback(monkeypatch):
    def broken(arguments):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("unmask.cli.main.dispatch", broken)
    with pytest.raises(OSError, match="Bad file"):
        main([])


@pytest.mark.slow
def test_the_harness_without_its_package_says_what_to_install():
    code = (
        "import runpy, sys; sys.modules['lm_eval'] = None; "
        "runpy.run_module('unmask.serving.harness', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("unmask: the harness needs lm-eval")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_forty_mutations_are_prepared_or_refused_in_words(tmp_path):
    assert failures(attempt, range(1, 41), tmp_path) == {}


@pytest.mark.attack
@pytest.mark.parametrize("start", range(1001, 1601, 100))
def test_mutations_are_prepared_or_refused_in_words(start, tmp_path):
    assert failures(attempt, range(start, start + 100), tmp_path) == {}
