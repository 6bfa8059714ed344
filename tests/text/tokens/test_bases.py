"""Bases: published ids, complements and reverse complements equal the recorded ones; other letters are counted."""

import json
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.text.tokens import vocabulary
from unmask.text.tokens.bases import bases, complement, reverse_complement
from unmask.text.tokens.tokenizer import Tokenizer

CASES = json.loads((Path(__file__).parents[2] / "golden/dna/dna_data_cases.json").read_text())
OURS, PUBLISHED = vocabulary.dna(), vocabulary.caduceus()


def test_the_published_vocabulary_has_the_recorded_ids(tmp_path):
    assert {piece: id for id, piece in enumerate(PUBLISHED.pieces)} == CASES["vocab"]
    for case in CASES["cases"]:
        assert PUBLISHED.encode(case["text"]) == case["ids_no_special"]
        assert [*PUBLISHED.encode(case["text"]), PUBLISHED.eos] == case["ids_default"]
    PUBLISHED.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == PUBLISHED.fingerprint
    assert (again.mask, again.pad, again.bos, again.eos) == (3, 4, 2, 1)


def test_complements_are_the_recorded_ones_in_both_vocabularies():
    assert complement(PUBLISHED).tolist() == list(CASES["complement_map"].values())
    assert complement(OURS).tolist() == [3, 2, 1, 0, 4, 5, 6, 7]
    assert complement(vocabulary.byte()) is None
    for case in CASES["cases"]:
        assert reverse_complement(case["text"]) == case["reverse_complement"]
        for tokenizer in (OURS, PUBLISHED):
            text = case["text"].replace("-", "")
            ids = tokenizer.encode(text)
            assert complement(tokenizer)[ids][::-1].tolist() == tokenizer.encode(reverse_complement(text))


def test_a_vocabulary_of_dna_is_known_by_its_letters():
    assert bases(OURS) == {"A": 0, "C": 1, "G": 2, "T": 3, "N": 4}
    assert bases(vocabulary.character(["ACGT"])) == {"A": 0, "C": 1, "G": 2, "T": 3}
    assert bases(vocabulary.character(["ACGTX"])) is None
    assert bases(vocabulary.protein()) is None


def test_codes_for_several_bases_are_counted():
    texts = ["acgtN", "RyRA", "ACGT"]
    assert OURS.replaced(texts) == {"R as N": 2, "y as N": 1}
    assert PUBLISHED.replaced([*texts, "A-é"]) == {"- as [UNK]": 1, "R as [UNK]": 2, "y as [UNK]": 1, "é as [UNK]": 1}
    assert vocabulary.byte().replaced(["é"]) == {}
    with pytest.raises(UserError, match="no token for '-'"):
        OURS.encode("AC-GT")
