"""Text that is sent is never taken back, and ends up complete."""

import models
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.serving.progress import Growing, stop_begun
from unmask.text.tokens.pieces import pieces
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.text.tokens.vocabulary import bpe, byte, character

BYTES, LETTERS = byte(), character([models.TEXT])


def cut(text: str, stops: tuple[str, ...]) -> str:
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="abé漢🙂", max_size=12),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=2).map(tuple),
    data=st.data(),
)
def test_pieces_sent_in_any_order_of_filling_join_to_the_text_up_to_the_first_stop(text, stops, data):
    ids = BYTES.encode(text)
    growing = Growing(BYTES, [], [None] * len(ids), stops=stops)
    sent = growing.more()
    told = growing.parts()
    for place in data.draw(st.permutations(range(len(ids)))):
        growing.put(place, ids[place])
        sent += growing.more()
        assert cut(text, stops).startswith(sent)
        assert sent.startswith("".join(growing.parts()))
        assert growing.parts()[: len(told)] == told, "the text of a token never changes"
        told = growing.parts()
    assert "".join(told) == sent
    assert len(told) == len(ids) or sent != text
    assert sent == growing.sent == cut(text, stops)
    assert growing.over
    assert growing.finish == ("stop" if cut(text, stops) != text else "length")


def test_a_stop_text_waits_for_a_longer_one_that_began_before_it():
    growing = Growing(LETTERS, [], [None] * 3, stops=("o", "fox"))
    for place, letter in ((0, "f"), (1, "o")):
        growing.put(place, LETTERS.encode(letter)[0])
        assert growing.more() == ""
        assert not growing.over
    growing.put(2, LETTERS.encode("x")[0])
    assert growing.more() == ""
    assert (growing.over, growing.finish) == (True, "stop")


def test_text_that_may_be_hidden_again_waits_until_all_is_there():
    growing = Growing(LETTERS, [], [None] * 3, ends=frozenset([LETTERS.eos]), revised=True)
    fox, eos = LETTERS.encode("fox"), LETTERS.eos
    for place, token in ((0, fox[0]), (1, eos), (1, None), (2, fox[2])):
        growing.put(place, token)
        assert growing.more() == ""
        assert not growing.over
    growing.put(1, fox[1])
    assert growing.more() == "fox"
    assert growing.over


def test_text_behind_a_blank_waits_for_it():
    growing = Growing(LETTERS, [], [None] * 3)
    for place, letter, sent in ((2, "x", ""), (0, "f", "f"), (1, "o", "ox")):
        growing.put(place, LETTERS.encode(letter)[0])
        assert growing.more() == sent


def test_an_end_token_ends_the_text_whatever_is_hidden_behind_it():
    growing = Growing(LETTERS, [], [None] * 4, ends=frozenset([LETTERS.eos]))
    growing.put(1, LETTERS.eos)
    assert not growing.over
    growing.put(0, LETTERS.encode("f")[0])
    assert growing.more() == "f"
    assert growing.over
    assert growing.finish == "stop"


def test_a_stop_text_ends_the_text_before_all_is_filled():
    growing = Growing(LETTERS, [], [*LETTERS.encode("a fox"), None], stops=("ox",))
    assert growing.more() == "a f"
    assert growing.ended


@pytest.mark.parametrize("text, held", [("", 0), ("xe", 1), ("xen", 2), ("xend", 0), ("enen", 2)])
def test_the_beginning_of_a_stop_text_is_held_back(text, held):
    assert stop_begun(text, ["end", "fin"]) == held


def test_bytes_that_make_no_character_are_shown_when_nothing_more_can_come():
    growing = Growing(BYTES, [], [None, None])
    growing.put(0, BYTES.encode("é")[0])
    assert growing.more() == ""
    growing.put(1, BYTES.encode("a")[0])
    assert growing.more() == "\ufffda"


def test_a_word_keeps_the_space_that_sets_it_apart_from_the_prompt():
    import tokenizers
    from tokenizers import decoders
    from tokenizers import models as library

    core = tokenizers.Tokenizer(library.WordLevel({"▁the": 0, "▁fox": 1, "<m>": 2}, unk_token="<m>"))
    core.decoder = decoders.Metaspace()
    growing = Growing(Tokenizer(core, 2), [0], [1])
    assert growing.more() == " fox"


def test_a_stop_text_within_a_token_cuts_its_part():
    words = bpe([models.TEXT * 9], 320)
    ids = words.encode("The quick brown fox")
    place, piece = next((i, text) for i, text in enumerate(pieces(words, ids)) if i and len(text) > 3)
    growing = Growing(words, [], [None] * len(ids), stops=(piece[2:],))
    for i, id in enumerate(ids):
        growing.put(i, id)
        growing.more()
        assert not growing.over or "".join(growing.parts()) == growing.sent
    assert len(growing.parts()) == place + 1
    assert growing.parts()[-1] == piece[:2]


def test_nothing_is_sent_while_every_token_may_still_be_replaced():
    growing = Growing(LETTERS, [], [None] * 2, revised=True)
    growing.moving = True
    growing.put(0, LETTERS.encode("a")[0])
    growing.put(1, LETTERS.encode("b")[0])
    assert growing.more() == ""
    growing.put(0, LETTERS.encode("c")[0])
    growing.moving = False
    assert growing.more() == "cb"
