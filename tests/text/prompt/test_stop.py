"""Where a text ends."""

import pytest

from unmask.errors import UserError
from unmask.text.prompt.stop import Until
from unmask.text.tokens.vocabulary import byte

LETTERS = byte()


@pytest.mark.parametrize(
    "text, start, end", [("one end two end", 0, 7), ("one end two end", 7, 15), ("one end", 5, None), ("", 0, None)]
)
def test_the_end_is_the_token_that_completes_the_first_mark(text, start, end):
    assert Until("end").end(LETTERS, LETTERS.encode(text), start) == end


def test_a_cut_text_stops_before_the_mark_and_its_tokens_after_it():
    ids, text = Until("éé").cut(LETTERS, LETTERS.encode("caféé au lait"))
    assert text == "caf"
    assert LETTERS.decode(ids) == "caféé"


def test_a_special_token_is_found_by_its_id_and_never_by_its_spelling():
    spelled = LETTERS.encode("a<|endoftext|>b")
    assert Until("<|endoftext|>").end(LETTERS, spelled) is None
    ids, text = Until("<|endoftext|>").cut(LETTERS, [97, LETTERS.eos, 98])
    assert (ids, text) == ([97, LETTERS.eos], "a")


def test_a_text_without_the_mark_is_left_whole():
    ids = LETTERS.encode("whole")
    assert Until("end").cut(LETTERS, ids) == (ids, "whole")


def test_an_empty_mark_is_refused():
    with pytest.raises(UserError, match="empty"):
        Until("")
