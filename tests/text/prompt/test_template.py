"""Templates: what is a blank, what is text, and which lengths are tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import UserError
from unmask.text.prompt.template import Blank, Template, heal_spaces, parse
from unmask.text.tokens.vocabulary import bpe, byte, character, text8


def test_brackets_are_blanks_of_given_length_and_underscores_of_a_chosen_one():
    parts = parse("The ___ sat on the [5].").parts
    assert parts == ("The ", Blank(1, 8), " sat on the ", Blank(5, 5), ".")


def test_a_blank_may_have_a_range_of_lengths():
    assert parse("[2-6]").parts == (Blank(2, 6),)
    assert parse("_____", least=2, most=3).parts == (Blank(2, 3),)


@pytest.mark.parametrize(
    "text, plain",
    [(r"\[5] [1]", "[5] "), (r"\___ [1]", "___ "), (r"\\[1]", "\\"), ("a__b [1]", "a__b "), ("[sic] [1]", "[sic] ")],
)
def test_escaped_and_ordinary_marks_are_text(text, plain):
    assert parse(text).parts == (plain, Blank(1, 1))


@given(st.text(max_size=40))
def test_any_text_survives_once_it_is_escaped(text):
    escaped = text.replace("\\", "\\\\").replace("[", "\\[").replace("_", "\\_")
    assert parse(escaped + "[3]").parts == ((text, Blank(3, 3)) if text else (Blank(3, 3),))


@pytest.mark.parametrize("text", ["", "no blanks", "[sic]", "a__b", r"\[5]", "[5"])
def test_a_template_without_blanks_is_refused(text):
    with pytest.raises(UserError, match="has no blank"):
        parse(text)


@pytest.mark.parametrize("text", ["[0]", "[5-2]", "[0-3]"])
def test_a_blank_of_no_tokens_or_of_shrinking_length_is_refused(text):
    with pytest.raises(UserError, match="at least one token"):
        parse(text)


def test_all_lengths_are_tried_if_they_are_few_shortest_first():
    assert parse("[1-2] [3] [1-2]").lengths(4) == [(1, 3, 1), (1, 3, 2), (2, 3, 1), (2, 3, 2)]


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 60))
def test_of_many_lengths_so_many_are_tried_as_were_allowed_and_all_are_in_range(tries, blanks, most):
    template = Template((Blank(1, most),) * blanks)
    tried = template.lengths(tries)
    assert 1 <= len(tried) <= tries
    assert len(set(tried)) == len(tried)
    assert all(len(lengths) == blanks and min(lengths) >= 1 and max(lengths) <= most for lengths in tried)
    if template.choices <= tries:
        assert len(tried) == template.choices


def test_at_least_one_choice_of_lengths_must_be_tried():
    with pytest.raises(UserError, match="at least one choice of lengths must be tried; saw 0"):
        parse("[3]").lengths(0)


def test_one_long_range_is_tried_evenly():
    assert parse("[1-100]").lengths(4) == [(1,), (26,), (51,), (76,)]


def test_blanks_become_masks_of_the_chosen_lengths_and_the_rest_stays():
    letters = byte()
    ids = parse("a___b[2]").tokens(letters, (3, 2))
    assert ids == [97, *[letters.mask] * 3, 98, *[letters.mask] * 2]


def test_parts_become_tokens_each_by_itself():
    words = bpe(["the cat the cat the cat"], 280)
    template = parse("the [1]cat")
    assert template.tokens(words, (1,)) == [*words.encode("the "), words.mask, *words.encode("cat")]


def test_text_that_a_vocabulary_would_read_as_unknown_is_refused():
    with pytest.raises(UserError, match=r"no token for '5': the model would see \[UNK\]"):
        parse("at 5 [3]").tokens(text8(), (3,))


def test_a_space_before_a_blank_becomes_part_of_it_where_words_begin_with_their_space():
    words = bpe(["the cat sat on the mat " * 9], 300)
    assert heal_spaces(parse("the [2] [1]. ___ ok"), words).parts == (
        "the",
        Blank(2, 2, spaced=True),
        Blank(1, 1, spaced=True),
        ".",
        Blank(1, 8, spaced=True),
        " ok",
    )
    assert heal_spaces(parse(" [2]s\n[1]a[1]"), words) == parse(" [2]s\n[1]a[1]"), (
        "nothing to move, or at the very start"
    )
    for others in (byte(), character(["the cat"]), text8()):
        assert heal_spaces(parse("the [2] at"), others) == parse("the [2] at")


def test_a_healed_template_says_where_a_token_must_begin_with_a_space():
    words = bpe(["the cat sat on the mat " * 9], 300)
    template = heal_spaces(parse("the [2] sat[1]"), words)
    ids, spaced = template.tokens(words, (2, 1)), template.spaced(words, (2, 1))
    first = len(words.encode("the"))
    assert ids == [*words.encode("the"), words.mask, words.mask, *words.encode(" sat"), words.mask]
    assert [i for i, one in enumerate(spaced) if one] == [first]
    assert len(spaced) == len(ids)
