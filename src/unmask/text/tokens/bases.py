"""Bases: what a vocabulary of DNA has beyond text: the complement of each id."""

from collections.abc import Mapping

import numpy as np

from unmask.text.tokens.alphabets import DNA, letters_of
from unmask.text.tokens.tokenizer import Tokenizer

PAIRS = str.maketrans("ACGTacgt", "TGCAtgca")


def bases(tokenizer: Tokenizer) -> Mapping[str, int] | None:
    """The ids of A, C, G, T and, if it has one, N; None: the vocabulary is not one of DNA."""
    return letters_of(tokenizer, DNA)


def complement(tokenizer: Tokenizer) -> np.ndarray | None:
    """The id of the complementary base of each id, all others their own; None: the vocabulary is not one of DNA."""
    letters = bases(tokenizer)
    if letters is None:
        return None
    table = np.arange(tokenizer.size)
    for base in "ACGT":
        table[letters[base]] = letters[base.translate(PAIRS)]
    return table


def reverse_complement(text: str) -> str:
    """The other strand of a sequence, read in its own direction; letters that are no base stay.

    >>> reverse_complement("GATTACA")
    'TGTAATC'
    """
    return text[::-1].translate(PAIRS)
