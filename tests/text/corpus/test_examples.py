"""Labelled texts and pairs of texts from tables, .jsonl and FASTA; quotes in .tsv files mean nothing."""

import gzip
import json

import pytest

from unmask.errors import UserError
from unmask.text.corpus.examples import Columns, Example, examples


def pairs(path, columns=None, **options):
    return [(one.texts, one.label) for one in examples(path, columns or Columns(), **options)]


def test_a_quote_in_a_tsv_file_joins_no_lines_and_a_byte_order_mark_belongs_to_no_name(tmp_path):
    path = tmp_path / "a.tsv.gz"
    lines = ["Quality\tone\tother", '1\t"He said\tHe said', '0\tA "quoted" word\tAnother', '1\tend"\tend']
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + "\n".join(lines).encode()))  # and no newline at the end
    assert pairs(path, Columns("one", "other", "Quality")) == [
        (('"He said', "He said"), "1"),
        (('A "quoted" word', "Another"), "0"),
        (('end"', "end"), "1"),
    ]


@pytest.mark.slow
def test_a_csv_file_has_quotes_and_the_usual_names_of_a_text_are_known(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('sequence,label\n"A,C",1\n\nGT,0\n')
    assert pairs(path) == [("A,C", "1"), ("GT", "0")]


@pytest.mark.slow
def test_columns_are_numbers_where_there_is_no_header(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("x\t1\t\tThe cat.\nx\t0\t*\tCat the.\n")
    assert pairs(path, Columns("4", "", "2")) == [("The cat.", "1"), ("Cat the.", "0")]


@pytest.mark.slow
def test_fields_of_jsonl_may_be_numbers_as_labels(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in ({"text": "a", "label": 1}, {"text": "b", "label": 0.5})))
    assert pairs(path) == [("a", "1"), ("b", "0.5")]


def test_labels_are_stripped_and_true_and_false_are_names(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": true}\n{"text": "b", "label": false}\n')
    assert pairs(path) == [("a", "true"), ("b", "false")]
    path.write_text('{"text": "a", "label": " good"}\n{"text": "b", "label": "good"}\n{"text": "c", "label": 1}\n')
    assert pairs(path) == [("a", "good"), ("b", "good"), ("c", "1")]
    table = tmp_path / "a.csv"
    table.write_text("text,label\na, good\nb,good \n")
    assert pairs(table) == [("a", "good"), ("b", "good")]


def test_true_beside_1_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": 1}\n{"text": "b", "label": true}\n{"text": "c", "label": 0}\n')
    with pytest.raises(UserError, match=r"line 2 of .*: the label is true, and that of line 1 of .* is 1. Write all"):
        pairs(path)


@pytest.mark.slow
def test_a_fasta_name_has_the_label(tmp_path):
    path = tmp_path / "a.fa"
    path.write_text(">one label=enhancer\nACG\nTT\n>two strand=- label=other\nGG\n")
    assert pairs(path) == [("ACGTT", "enhancer"), ("GG", "other")]


@pytest.mark.slow
def test_no_word_after_a_fasta_name_takes_the_place_of_the_sequence(tmp_path):
    path = tmp_path / "a.fa"
    path.write_text(">one label=1 sequence=GGG text=TTT seq=T sentence=T name=x\nACG\n>two label=0\nTT\n")
    for field in ("auto", "sequence", "text"):
        found = examples(path, Columns(field=field))
        assert [(one.text, one.label, one.name) for one in found] == [("ACG", "1", "one"), ("TT", "0", "two")]


@pytest.mark.slow
def test_labels_may_be_missing_where_they_are_predicted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text\nhello\n")
    assert examples(path, Columns(), labels=False) == [Example("hello", None, None, f"line 2 of {path}")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, content, columns, message",
    [
        ("a.csv", "text,label\na,b,c\n", {}, "line 2 of .* has 3 columns; the first line has 2"),
        ("a.csv", "txt,label\na,b\n", {}, "no field is called 'text'. Did you mean 'txt'.* Choose with --field"),
        ("a.csv", "text,kind\na,b\n", {}, "line 2 of .*no field is called 'label'.*Choose with --field, --pair"),
        ("a.tsv", "text\tlabel\na\t1\n", {"pair": "other"}, "no field is called 'other'"),
        ("a.csv", "text,label\na, \n", {}, "the label must be a name or a number; saw ' '"),
        ("a.jsonl", '{"text": 3, "label": 1}', {}, "field 'text' is not text but 3"),
        ("a.jsonl", '{"text": "a", "label": null}', {}, "the label must be a name or a number; saw None"),
        ("a.csv", "text,label\n", {}, "holds no labelled text"),
        ("a.csv", "", {}, "holds no labelled text"),
        ("a.fa", ">one\nACG\n", {}, "line 1 of .*no field is called 'label'"),
        ("a.fa", "ACG\n", {}, "is not FASTA: line 1"),
        ("a.fa", ">a label=1\nACG\n>b label=0\n\n>c label=1\nA\n", {}, "line 3 of .*the sequence 'b' is empty"),
        ("a.fa", ">a label=1\nACG\n>b label=0", {}, "line 3 of .*the sequence 'b' is empty. Is the file cut short"),
        ("a.fa", ">a label=1\nACG\n", {"pair": "other"}, "holds no pairs"),
        ("a.txt", "a\n", {}, "read from .jsonl, .csv, .tsv and .fasta; saw a.txt"),
    ],
)
def test_what_is_no_labelled_text_is_refused(tmp_path, name, content, columns, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        examples(path, Columns(**columns))


@pytest.mark.slow
def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*none\.csv"):
        examples(tmp_path / "none.csv", Columns())
