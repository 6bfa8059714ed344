"""Stories cut into sentences, promises as patterns, and what judges pay."""

import re

import numpy as np
import pytest
import torch

from studies.promises import ANY, PAIRS, of_sentences, with_words
from studies.stories import first_word, gap, read_stories, sentences, verdicts
from unmask.errors import UserError
from unmask.text.tokens.vocabulary import byte

pytestmark = pytest.mark.slow

STORY = 'Tom ran. "Stop!" said Mum. Did he stop? No... He fell (hard!) on 3.5 stones.\n"Ow."'


def test_sentences_end_at_marks_that_a_space_or_the_end_follows():
    assert sentences(STORY) == [
        "Tom ran.",
        ' "Stop!"',
        " said Mum.",
        " Did he stop?",
        " No...",
        " He fell (hard!)",
        " on 3.5 stones.",
        '\n"Ow."',
    ]


@pytest.mark.parametrize("text", [STORY, "no mark at all", "One. ", " One. Two ", "A.B. C", ""])
def test_sentences_joined_are_the_text_again(text):
    assert "".join(sentences(text)) == text


def test_the_gap_is_the_middle_of_the_most_sentences_that_fit():
    tokenizer, story = byte(), "One a. Two b. Three c. Four d. Five e. Six f."
    found = gap(story, tokenizer, length=100, longest=10)
    assert found is not None
    assert found.parts == ("One a. Two b.", " Three c.", " Four d. Five e.")
    # Three sentences and the token before them: 22 bytes and one.
    found = gap(story, tokenizer, length=23, longest=10)
    assert found is not None
    assert found.parts == ("One a.", " Two b.", " Three c.")
    assert gap(story, tokenizer, length=22, longest=10) is None
    assert gap(story, tokenizer, length=100, longest=8) is None


def test_the_first_word_is_without_marks():
    texts = (' "Don\'t go," he said.', "\nLily.", " ...", "")
    assert [first_word(text) for text in texts] == ["Don't", "Lily", "", ""]


class Ruler:
    """A judge that pays 1, 2, 3, ... for the characters of a text, nothing for the eos before it."""

    eos, most, about = 0, 100, {}

    def encode(self, text):
        return [ord(letter) for letter in text]

    def nats(self, tokens):
        return torch.arange(tokens.shape[1]).expand(tokens.shape).float()


def test_a_judge_pays_for_each_part_of_a_text():
    one, two = verdicts(Ruler(), [("ab", "c", "def"), ("", "xyz", "")])
    assert (one.nats, one.tokens) == ((1 + 2, 3, 4 + 5 + 6), (2, 1, 3))
    assert (two.nats, two.tokens) == ((0, 6, 0), (0, 3, 0))
    assert one.all == (21, 6)


def test_without_an_eos_the_first_token_is_not_counted():
    judge = Ruler()
    judge.eos = None
    (one,) = verdicts(judge, [("ab", "c")])
    assert (one.nats, one.tokens) == ((1, 2), (1, 1))


def test_what_matches_a_promise_keeps_it_and_what_keeps_it_matches():
    source = np.random.default_rng(0)
    words = ["dog", "ball", "dogs", "a", "football", ".", "3dog", "_ball", "the"]
    seen = set()
    promise = with_words("dog", "ball")
    for _ in range(2000):
        text = " " + " ".join(source.choice(words, size=6)) + "."
        matches = re.fullmatch(promise.pattern, text, re.ASCII) is not None
        assert matches == (re.fullmatch(promise.check, "Once" + text, re.DOTALL) is not None)
        seen.add(matches)
    assert seen == {True, False}
    assert all(pair[0] != pair[1] for pair in PAIRS)
    assert re.fullmatch(ANY, "a\nb")


def test_words_are_side_by_side_with_a_space_or_a_mark_between_them():
    together = with_words("dog", "ball").together
    assert all(re.search(together, text) for text in ("a dog ball", "The dog. ball", 'dog "ball"'))
    assert not any(re.search(together, text) for text in ("dog a ball", "ball dog", "dogball", "dog balls"))


def test_so_many_sentences_are_no_more_and_no_fewer_and_end_at_the_end():
    check = of_sentences(3).check
    assert re.fullmatch(check, "One. Two!\nThree?")
    for wrong in ("One. Two.", "One. Two. Three. Four.", "One. Two. Three. F", "One.. Two. Three."):
        assert not re.fullmatch(check, wrong)


def test_a_file_without_stories_is_refused(tmp_path):
    with pytest.raises(UserError, match="--texts"):
        read_stories(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("<|endoftext|>\n")
    with pytest.raises(UserError, match="holds no stories"):
        read_stories(tmp_path / "empty.txt")
    (tmp_path / "two.txt").write_text("One.\n<|endoftext|>\nTwo.\n<|endoftext|>\n")
    assert read_stories(tmp_path / "two.txt") == ["One.", "Two."]
