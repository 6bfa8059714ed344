"""GLUE and Genomic Benchmarks by name, from files laid out as they are published."""

import gzip
import logging
import os
from collections import Counter
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.text.corpus.benchmarks import BENCHMARKS, benchmark_of, submission
from unmask.text.corpus.dataset import DataSet

pytestmark = pytest.mark.slow

FILES = {
    "CoLA": {
        "train": "gj04\t1\t\tOur friends won't buy this.\ngj04\t0\t*\t\"Us love they.\n",
        "dev": "gj04\t1\t\tThe sailors rode.",
        "test": "index\tsentence\n0\tBill went.\n1\tWent Bill.\n",
    },
    "MRPC": {
        "train": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\t"He said\tHe did\n0\t3\t4\ta\tb"\n',
        "dev": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tx\ty\n",
        "test": "\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tx\ty\n",
    },
    "STS-B": {
        "train": "index\tsentence1\tsentence2\tscore\n0\ta plane\ta jet\t5.000\n1\ta\tb\t0.6\n",
        "dev": "index\tsentence1\tsentence2\tscore\n0\ta\tb\t3.25\n",
        "test": "index\tsentence1\tsentence2\n0\ta\tb\n",
    },
    "RTE": {
        "train": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n1\tc\td\tentailment\n",
        "dev": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n",
        "test": "index\tsentence1\tsentence2\n0\ta\tb\n",
    },
    "MNLI": {
        "train": "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\tneutral\n",
        "dev_matched": "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n",
        "dev_mismatched": "index\tsentence1\tsentence2\tgold_label\n0\tc\td\tcontradiction\n",
        "test_matched": "index\tsentence1\tsentence2\n0\ta\tb\n",
        "test_mismatched": "index\tsentence1\tsentence2\n0\ta\tb\n",
    },
}


@pytest.fixture
def root(tmp_path):
    for task, files in FILES.items():
        (tmp_path / "glue" / task).mkdir(parents=True)
        for name, content in files.items():
            (tmp_path / "glue" / task / f"{name}.tsv.gz").write_bytes(gzip.compress(content.encode()))
    return tmp_path


QQP = """id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate
1\t1\t2\tA cat?\tA dog?\t0
"\tWas he real? What is the evidence?\t0
2\t3\t4\tA man?\tA man?\t1
"""


def read(root, name):
    return {
        split: [(one.texts, one.label) for one in some] for split, some in benchmark_of(name).splits(root).items()
    }


def test_cola_has_no_header_but_in_its_test_set_and_a_quote_is_a_letter(root):
    assert read(root, "cola") == {
        "train": [("Our friends won't buy this.", "1"), ('"Us love they.', "0")],
        "valid": [("The sailors rode.", "1")],
        "test": [("Bill went.", None), ("Went Bill.", None)],
    }


def test_pairs_are_read_with_their_labels(root):
    assert read(root, "MRPC")["train"] == [(('"He said', "He did"), "1"), (("a", 'b"'), "0")]
    assert read(root, "sts-b")["train"] == [(("a plane", "a jet"), "5.000"), (("a", "b"), "0.6")]
    assert read(root, "glue/rte")["valid"] == [(("a", "b"), "entailment")]


def test_rows_of_qqp_that_break_off_are_left_out_and_counted(root, caplog):
    folder = root / "glue" / "QQP"
    folder.mkdir()
    (folder / "train.tsv").write_text(QQP)
    (folder / "dev.tsv").write_text(QQP.replace('"\tWas', "Was"))
    (folder / "test.tsv").write_text("id\tquestion1\tquestion2\n0\ta\tb\n")
    with caplog.at_level(logging.WARNING):
        found = read(root, "qqp")
    assert found["train"] == found["valid"] == [(("A cat?", "A dog?"), "0"), (("A man?", "A man?"), "1")]
    assert "1 rows of " in caplog.text
    assert "train.tsv have too few columns and were left out, first line 3 of" in caplog.text
    (folder / "test.tsv").write_text("id\tquestion1\tquestion2\n0\ta\n1\ta\tb\n")  # its lines are numbered
    with pytest.raises(UserError, match=r"line 2 of .*test.tsv has 2 columns; the first line has 3"):
        read(root, "qqp")
    (folder / "test.tsv").unlink()
    (folder / "dev.tsv").write_text(QQP.replace("A cat?", "A cat?\tor two"))  # more columns were never published
    with pytest.raises(UserError, match=r"line 2 of .*dev.tsv has 7 columns; the first line has 6"):
        read(root, "qqp")
    (root / "glue" / "RTE" / "train.tsv.gz").write_bytes(gzip.compress(b"sentence1\tsentence2\tlabel\na\tb\n"))
    with pytest.raises(UserError, match=r"has 2 columns; the first line has 3"):
        read(root, "rte")


def test_mnli_has_two_validation_sets(root):
    assert read(root, "mnli_mismatched")["valid"] == [(("c", "d"), "contradiction")]
    assert read(root, "MNLI-matched")["valid"] == [(("a", "b"), "neutral")]
    assert read(root, "MNLI-matched")["test"] == [(("a", "b"), None)]


def test_published_numbers_of_examples_are_known_of_every_benchmark():
    assert all({"train", "test"} <= one.published.keys() for one in BENCHMARKS.values())
    assert BENCHMARKS["mrpc"].published == {"train": 3668, "valid": 408, "test": 1725}


@pytest.mark.parametrize("inside", ["", "genomic_benchmarks_subset"])
def test_a_genomic_benchmark_is_a_table_or_a_folder_of_classes(tmp_path, inside):
    place = tmp_path / inside
    place.mkdir(exist_ok=True)
    for part in ("train", "test"):
        text = f"label\tregion\tsequence\nocr\tchr1\tACG{part[0].upper()}\n"
        (place / f"human_ocr_ensembl.{part}.tsv").write_text(text.replace("TRAIN", "T"))
        for kind in ("positive", "negative"):
            folder = place / "demo_human_or_worm" / part / kind
            folder.mkdir(parents=True)
            for i in range(2):
                (folder / f"{i}.txt").write_text("ACGT"[i:])
    found = read(tmp_path, "human_ocr_ensembl")
    assert found["train"] == [("ACGT", "ocr")]
    worm = read(tmp_path, "demo_human_or_worm")
    assert worm["test"] == [("ACGT", "negative"), ("CGT", "negative"), ("ACGT", "positive"), ("CGT", "positive")]


def test_what_is_not_at_hand_and_not_on_the_hub_is_advised(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"put its train.tsv, dev.tsv and test.tsv into .*glue/SST-2.*--data-root"):
        benchmark_of("SST-2").splits(tmp_path)


def test_rows_of_the_hub_are_examples_and_its_whole_numbers_are_labels(monkeypatch):
    rows = [{"sentence1": "a", "sentence2": "b", "label": 1}, {"sentence1": "c", "sentence2": "d", "label": -1}]
    monkeypatch.setattr(DataSet, "pinned", lambda self: self)
    monkeypatch.setattr(DataSet, "rows", lambda self: iter(rows))
    found = benchmark_of("RTE").from_hub()
    assert [(one.texts, one.label) for one in found["valid"]] == [(("a", "b"), "not_entailment"), (("c", "d"), None)]


def test_a_submission_has_a_line_for_each_test_example():
    assert submission(benchmark_of("cola"), ["1", "0"]) == ("CoLA.tsv", "index\tprediction\n0\t1\n1\t0\n")
    assert submission(benchmark_of("mnli-mismatched"), [])[0] == "MNLI-mm.tsv"


def test_a_submission_of_sts_b_is_clipped_to_the_scores_that_there_are():
    _, content = submission(benchmark_of("STS-B"), ["5.312", "-0.104", "2.500"])
    assert content == "index\tprediction\n0\t5.000\n1\t0.000\n2\t2.500\n"


# Of each file the beginning of the first row, the end of the last one, and their labels.
ENDS = {
    "CoLA": {
        "train": ("Our friends won't buy this a", "1", "d you get for Christmas?", "1"),
        "valid": ("The sailors rode the breeze ", "1", "d to Bill about himself.", "1"),
        "test": ("Bill whistled past the house", None, "himself frightened John.", None),
    },
    "SST-2": {
        "train": ("hide new secretions from the", "0", "ntender for the title . ", "0"),
        "valid": ("it 's a charming and often a", "1", "ot be improved upon . ' ", "1"),
        "test": ("uneasy mishmash of styles an", None, "us damsels can deliver .", None),
    },
    "MRPC": {
        "train": ("Amrozi accused his brother ,", "1", "percent late Wednesday .", "0"),
        "valid": ("He said the foodservice pie ", "1", "a of an alien ideology .", "1"),
        "test": ("PCCW 's chief operating offi", None, '" and " Re : Details " .', None),
    },
    "STS-B": {
        "train": ("A plane is taking off.", "5.000", "d in Texas After Tornado", "0"),
        "valid": ("A man with a hard hat is dan", "5.000", "ounded in hatchet attack", "0"),
        "test": ("A girl is styling her hair.", None, "h South Korean Officials", None),
    },
    "RTE": {
        "train": ("No Weapons of Mass Destructi", "not_entailment", " Turkish military bases.", "not_entailment"),
        "valid": ("Dana Reeve, the widow of the", "not_entailment", "that peace is terrorism.", "not_entailment"),
        "test": ("Mangla was summoned after Ma", None, "ed in an airplane crash.", None),
    },
    "WNLI": {
        "train": ("I stuck a pin through a carr", "1", "ly had such a bad start.", "1"),
        "valid": ("The drain is clogged with ha", "0", "cularly eager to see it.", "0"),
        "test": ("Maude and Dora had seen the ", None, "tuck on the window sill.", None),
    },
    "QNLI": {
        "valid": ("What came into force after t", "entailment", "reviously been supposed.", "not_entailment"),
        "test": ("What organization is devoted", None, " and 300,000 in Prussia.", None),
    },
}
DEV = {  # how many dev examples have each label
    "CoLA": {"1": 721, "0": 322},
    "SST-2": {"1": 444, "0": 428},
    "MRPC": {"1": 279, "0": 129},
    "RTE": {"entailment": 146, "not_entailment": 131},
    "WNLI": {"0": 40, "1": 31},
    "QNLI": {"not_entailment": 2761, "entailment": 2702},
}
BESIDE = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture(scope="module")
def published():
    """The folder with GLUE as it is published."""
    found = Path(os.environ.get("UNMASK_DATA") or BESIDE)
    if not (found / "glue").is_dir():
        pytest.skip(f"GLUE's files are not at hand: {found} has no folder glue (name another with UNMASK_DATA)")
    return found


@pytest.mark.parametrize("task", ENDS)
def test_files_of_glue_give_the_published_counts_and_rows(task, published):
    one = benchmark_of(task)
    if not (published / "glue" / task).is_dir():
        pytest.skip(f"{published / 'glue'} has no folder {task}")
    found = one.splits(published)
    assert found.keys() >= ENDS[task].keys()
    for split, some in found.items():
        assert len(some) == one.published[split], split
        if split in ENDS[task]:
            first, last = some[0], some[-1]
            begin, first_label, end, last_label = ENDS[task][split]
            assert first.text.startswith(begin)
            assert (last.pair or last.text).endswith(end)
            assert (first.label, last.label) == (first_label, last_label)
        assert all((example.pair is None) == (not one.columns.pair) for example in some)
    if not one.number:
        assert Counter(example.label for example in found["valid"]) == DEV[task]
    else:
        assert sum(float(example.label) for example in found["valid"]) == pytest.approx(3545.861, abs=1e-3)
    if task == "MRPC":  # a quote that is never closed joins no lines
        war = ("We are declaring war on sexual harassment and", "We have declared war on sexual assault and")
        pair = found["train"][77].texts
        assert [text.count('"') for text in pair] == [1, 2]
        assert all(text.startswith(f'" {begin}') for text, begin in zip(pair, war, strict=True))
