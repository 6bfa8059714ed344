"""GLUE and Genomic Benchmarks by name, from files laid out as they are published."""

import gzip

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
