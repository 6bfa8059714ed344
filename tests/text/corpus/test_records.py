"""Objects of .jsonl files, plain or compressed: every error names the line."""

import gzip

import pytest

from unmask.errors import UserError
from unmask.text.corpus.records import objects, records, rows_of


def test_objects_know_their_line_and_how_much_was_read_and_empty_lines_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n{"n": 1}\n')
    first, second = objects(path)
    assert (first.content, second.content) == ({"text": "a"}, {"n": 1})
    assert second.where == f"line 3 of {path}"
    assert second.at == path.stat().st_size


def test_a_compressed_file_holds_the_same_objects(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a", "label": 1}\n'))
    assert list(records(path, "text")) == [{"text": "a", "label": 1}]


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 2 of .* is not JSON"),
        ("[1]", r"line 2 of .* is not a JSON object but '\[1\]'"),
        ('{"txt": "a"}', "line 2 of .*no field is called 'text'. Did you mean 'txt'"),
        ('{"text": 3}', "line 2 of .*field 'text' is not text but 3"),
    ],
)
def test_an_error_in_a_record_names_its_line(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "a"}}\n{line}\n')
    with pytest.raises(UserError, match=message):
        list(records(path, "text"))


@pytest.mark.parametrize(
    "content, message",
    [
        ('label,text\n1,abc\n2,"de\n1,f\n2,g\n', r"line 3 of .*a\.csv is not CSV: a quote .* none closes it"),
        ('label,text\n1,"de\n1,f\n2,"g"\n', r"line 2 of .*a\.csv is not CSV: text follows the quote"),
        ('text,label\n"a" b,1\n', r"line 2 of .*a\.csv is not CSV: text follows the quote"),
    ],
)
def test_a_quote_that_is_not_closed_is_an_error_and_swallows_no_rows(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        list(rows_of(path))


def test_a_quoted_field_over_several_lines_is_one_field(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('label,text\n1,"two\nlines, and a ""quote"""\n0,plain\n')
    cells = [row.cells for row in rows_of(path)]
    assert cells == [["label", "text"], ["1", 'two\nlines, and a "quote"'], ["0", "plain"]]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*none\.jsonl"):
        list(records(tmp_path / "none.jsonl"))
