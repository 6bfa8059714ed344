"""What each token brings to a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.vocabulary import bpe, byte

LETTERS = byte()
WORDS = bpe(["the cat sat on the mat, the café too " * 3], 300)


@given(st.lists(st.integers(0, LETTERS.size - 1), max_size=30))
def test_pieces_of_any_bytes_join_to_the_decoded_text(ids):
    assert "".join(pieces(LETTERS, ids)) == LETTERS.decode(ids)
    assert len(pieces(LETTERS, ids)) == len(ids)


@given(st.text(max_size=30))
def test_pieces_of_words_join_to_the_decoded_text(text):
    ids = WORDS.encode(text)
    assert "".join(pieces(WORDS, ids)) == WORDS.decode(ids) == text


def test_a_letter_of_several_bytes_belongs_to_its_last_byte():
    assert pieces(LETTERS, LETTERS.encode("aë漢b")) == ["a", "", "ë", "", "", "漢", "b"]


@pytest.mark.parametrize("blank", ["░", "_"])
def test_a_mask_is_shown_as_a_symbol(blank):
    assert pieces(LETTERS, [97, LETTERS.mask, 98], blank=blank) == ["a", blank, "b"]
