"""Intervals are read as the file says, no base is in two splits, and what cannot be right is refused at once."""

import gzip
import json
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

from unmask.cli.main import main
from unmask.errors import UserError
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.intervals import Interval, interval_windows, overlaps, read_bed
from unmask.text.corpus.sources import gather
from unmask.text.corpus.tokenized import whole_documents
from unmask.text.tokens.bases import reverse_complement
from unmask.text.tokens.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

CASES = json.loads((Path(__file__).parents[2] / "golden/dna/dna_data_cases.json").read_text())
random.seed(1)
ONE, TWO = ("".join(random.choices("ACGT", k=size)) for size in (400, 100))


@pytest.fixture
def genome(tmp_path) -> Path:
    lines = "\n".join(ONE[i : i + 60] for i in range(0, len(ONE), 60))
    (tmp_path / "g.fa").write_text(f">one first\n{lines}\n>two\n{TWO}\n")
    return tmp_path / "g.fa"


def bed(folder: Path, *rows: str) -> str:
    (folder / "splits.bed").write_text("".join("\t".join(row.split()) + "\n" for row in rows))
    return str(folder / "splits.bed")


def documents(genome: Path, layout: FileLayout) -> dict[str | None, list[str]]:
    with gather(genome, layout) as sources:
        return {source.split: list(whole_documents(source.pieces(layout))) for source in sources}


def test_regions_are_documents_of_their_split_and_the_other_strand_is_read_backwards(genome, tmp_path):
    rows = ("# comment", "two 10 30 test", "one 0 100 train x -", "one 300 400 train", "one 100 300 val")
    found = documents(genome, FileLayout(intervals=bed(tmp_path, *rows)))
    assert found == {
        "train": [reverse_complement(ONE[:100]), ONE[300:]],
        "valid": [ONE[100:300]],
        "test": [TWO[10:30]],
    }
    assert documents(genome, FileLayout(intervals=bed(tmp_path, "two 0 100"))) == {None: [TWO]}


@pytest.mark.slow
def test_prepared_regions_have_their_splits_and_what_is_replaced_is_counted(genome, tmp_path, capsys):
    genome.write_text(genome.read_text().replace(ONE[:3], "RYn", 1) + ">none\n\n>three\nACGT\n")
    listed = bed(tmp_path, "one 0 200 train", "one 200 400 valid", "two 0 100 test")
    out = tmp_path / "data"
    line = ["prepare", str(genome), "--out", str(out), "--tokenizer", "caduceus", "--intervals", listed]
    assert main([*line, "--workers", "1"]) == 0
    assert "2 letters that the vocabulary does not have were replaced (R as [UNK]: 1, Y as [UNK]: 1)" in (
        capsys.readouterr().out
    )
    tokenizer = Tokenizer.load(out)
    texts = {split: tokenizer.decode(Corpus.open(out, split).document(0)) for split in ("train", "valid", "test")}
    assert texts == {"train": "N" + ONE[3:200], "valid": ONE[200:], "test": TWO}
    whole = ["prepare", str(genome), "--out", str(tmp_path / "whole"), "--tokenizer", "dna", "--workers", "1"]
    assert main(whole) == 0
    assert "1 documents without a token were left out" in capsys.readouterr().out


@pytest.mark.parametrize("case", CASES["windows"])
def test_stretched_windows_are_the_recorded_ones(case):
    text = ("ACGTN" * 700 if case["chr_len"] == 3500 else "acgtt" * 300)[: case["chr_len"]]
    layout = FileLayout(intervals="x", stretch=case["max_allowed"], window=case["max_length"])
    one = Interval("chr", case["interval_start"], case["chr_len"], "train")
    start, end = list(interval_windows(one, len(text), layout))[case["shift"]]
    assert (end - start, text[start : start + 5], text[end - 5 : end]) == (
        case["got_length"],
        case["first5"],
        case["last5"],
    )


def test_stretched_intervals_say_that_they_leak(genome, tmp_path, caplog):
    listed = bed(tmp_path, "one 0 100 train", "one 100 200 test")
    found = documents(genome, FileLayout(intervals=listed, stretch=256, window=64))
    assert "leak: 1 pairs of them share bases" in caplog.text
    assert found["train"] == [ONE[start : start + 64] for start in (0, 64, 128, 192)]
    assert found["test"] == [ONE[start : start + 64] for start in (100, 164, 228, 292)]


def test_overlaps_are_all_bases_in_two_splits():
    """Against a table of every base."""
    for seed in range(200):
        draw = random.Random(seed)
        rows = [(draw.randrange(30), draw.randrange(1, 8), draw.choice(["train", "test"])) for _ in range(6)]
        listed = sorted(Interval("c", start, start + size, split) for start, size, split in rows)
        sides = [{one.split for one in listed if one.start <= base < one.end} for base in range(40)]
        assert bool(overlaps(listed)) == any(len(side) > 1 for side in sides)


WRONG = [
    (["one 0 100 train", "one 99 200 test"], "line 1 .*one:0-100 .train. and .*line 2 .*one:99-200 .test. overlap"),
    (["one 0 401 train"], "line 1 .*one:0-401 ends after the end of one, which has 400 bases"),
    (["ones 0 10 train"], "Did you mean 'one'"),
    (["one 10 10 train"], "line 1 .*is empty"),
    (["one ten 20 train"], "line 1 .*is not BED"),
    (["one 0 10 trian"], "fourth column must be a split.*Did you mean 'train'"),
    (["one 0 10 train", "one 20 30"], "line 2 .*has no split"),
    (["# nothing"], "lists no interval"),
]


@pytest.mark.parametrize(("rows", "told"), WRONG)
def test_intervals_that_cannot_be_right_are_refused_and_nothing_is_written(rows, told, genome, tmp_path, capsys):
    out = tmp_path / "data"
    line = ["prepare", str(genome), "--out", str(out), "--tokenizer", "dna", "--intervals", bed(tmp_path, *rows)]
    assert main(line) == 2
    assert re.search(told, capsys.readouterr().err.replace("\n", " "))
    assert not out.exists()


def test_sequences_of_one_name_windows_that_do_not_fit_and_other_files_are_refused(genome, tmp_path):
    listed = bed(tmp_path, "two 0 100 train")
    with pytest.raises(UserError, match="window of 128 bases is longer than two, which has 100"):
        documents(genome, FileLayout(intervals=listed, stretch=256, window=128))
    with pytest.raises(UserError, match="give both"):
        FileLayout(intervals=listed, stretch=256)
    with pytest.raises(UserError, match="give --intervals too"):
        FileLayout(stretch=256, window=128)
    genome.write_text(genome.read_text() + ">two again\nACGT\n")
    with pytest.raises(UserError, match="two sequences are called 'two'"):
        documents(genome, FileLayout(intervals=listed))
    (tmp_path / "a.txt").write_text("ACGT")
    with pytest.raises(UserError, match=r"a.txt is not one \(.fa"):
        documents(tmp_path / "a.txt", FileLayout(intervals=listed))
    with pytest.raises(UserError, match="there is no file"):
        read_bed(tmp_path / "none.bed")


def test_a_fasta_file_that_is_cut_is_refused(genome, tmp_path):
    whole = genome.read_text()
    genome.write_text(whole[: whole.index("\n", whole.index(">two"))])
    with pytest.raises(UserError, match="ends after the name of a sequence, 'two': the file is cut short"):
        documents(genome, FileLayout())
    packed = tmp_path / "g.fa.gz"
    packed.write_bytes(gzip.compress(whole.encode())[:-20])
    with pytest.raises(UserError, match="damaged or cut short"):
        documents(packed, FileLayout())
    genome.write_text(whole[:150])  # in the middle of a sequence: its intervals show it
    with pytest.raises(UserError, match="Is the FASTA file cut short"):
        documents(genome, FileLayout(intervals=bed(tmp_path, "one 0 400 train")))


def test_regions_side_by_side_hold_every_base_once(genome, tmp_path):
    cuts = [0, 37, 38, 200, 399, 400]
    rows = [
        f"one {a} {b} {split}" for (a, b), split in zip(pairwise(cuts), ["train", "valid", "test"] * 2, strict=False)
    ]
    found = documents(genome, FileLayout(intervals=bed(tmp_path, *rows)))
    assert sum(len(text) for texts in found.values() for text in texts) == 400
