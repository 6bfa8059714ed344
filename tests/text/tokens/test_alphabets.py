"""Alphabets: which letters of a vocabulary of sequences stand for no letter, and which ids are never drawn."""

import pytest

from unmask.errors import UserError
from unmask.text.tokens import vocabulary
from unmask.text.tokens.alphabets import DNA, PROTEIN, letters_of, undrawn_ids, unscored_ids
from unmask.text.tokens.tokenizer import Tokenizer

OURS, PUBLISHED, AMINO = vocabulary.dna(), vocabulary.caduceus(), vocabulary.protein()
TWENTY = "ACDEFGHIKLMNPQRSTVWY"


def test_a_protein_is_read_in_either_case_and_its_rare_letters_as_x():
    assert AMINO.pieces == (*TWENTY, "X", "<|endoftext|>", "<|pad|>", "<|mask|>")
    assert (AMINO.eos, AMINO.bos, AMINO.pad, AMINO.mask) == (21, 21, 22, 23)
    for text in (TWENTY, TWENTY.lower()):
        assert AMINO.encode(text) == list(range(20))
    for letter in "XxBJOUZbjouz":
        assert AMINO.encode(letter) == [20]
    assert AMINO.replaced(["mkUuX", "BzA"]) == {"B as X": 1, "U as X": 1, "u as X": 1, "z as X": 1}
    for other in "*-. 1é":
        with pytest.raises(UserError, match="no token for"):
            AMINO.encode("MK" + other)


def test_a_saved_vocabulary_keeps_its_alphabet(tmp_path):
    AMINO.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == AMINO.fingerprint
    assert unscored_ids(again) == unscored_ids(AMINO) == (20,)


def test_letters_that_stand_for_no_letter_are_never_scored():
    assert unscored_ids(OURS) == (4,)
    assert unscored_ids(PUBLISHED) == (11, 6)
    assert unscored_ids(vocabulary.character(["ACGTX"])) == ()


def test_a_vocabulary_of_the_letters_in_the_data_is_no_alphabet_of_proteins():
    """Its X is a letter like any other: nothing else is read as it."""
    own = vocabulary.character([TWENTY + "X"])
    assert letters_of(own, PROTEIN) is None
    assert letters_of(own, DNA) is None
    assert unscored_ids(own) == undrawn_ids(own, ends=False) == ()


@pytest.mark.parametrize("tokenizer", [OURS, PUBLISHED, AMINO], ids=["dna", "caduceus", "protein"])
@pytest.mark.parametrize("ends", [False, True])
def test_what_is_drawn_is_a_letter_the_mask_aside_and_the_end_if_it_may_come(tokenizer, ends):
    drawn = set(range(tokenizer.size)) - set(undrawn_ids(tokenizer, ends=ends)) - {tokenizer.mask}
    assert {tokenizer.eos} & drawn == ({tokenizer.eos} if ends else set())
    letters = TWENTY if tokenizer is AMINO else "ACGT"
    assert sorted(tokenizer.pieces[id] for id in drawn - {tokenizer.eos}) == sorted(letters)


def test_a_vocabulary_of_text_draws_everything():
    assert undrawn_ids(vocabulary.byte(), ends=False) == ()
    assert undrawn_ids(vocabulary.text8(), ends=False) == ()


@pytest.mark.parametrize("name", ["dna", "caduceus", "protein", "byte", "text8"])
def test_vocabularies_of_letters_read_letters_and_one_of_words_does_not(name):
    assert getattr(vocabulary, name)().reads_letters
    assert not vocabulary.bpe(["the cat sat on the mat"] * 9, 270).reads_letters
