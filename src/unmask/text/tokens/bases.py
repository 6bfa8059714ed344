"""Bases: what a vocabulary of DNA has beyond text: the complement of each id, and letters that are never scored."""

from collections.abc import Mapping

import numpy as np

from unmask.text.tokens.tokenizer import Tokenizer

PAIRS = str.maketrans("ACGTacgt", "TGCAtgca")
UNKNOWN = "N"  # any of the four bases


def bases(tokenizer: Tokenizer) -> Mapping[str, int] | None:
    """The ids of A, C, G, T and, if it has one, N; None: the vocabulary is not one of DNA."""
    letters = {piece: id for id, piece in enumerate(tokenizer.pieces) if piece and id not in tokenizer.specials}
    return letters if set("ACGT") <= letters.keys() <= set("ACGT" + UNKNOWN) else None


def complement(tokenizer: Tokenizer) -> np.ndarray | None:
    """The id of the complementary base of each id, all others their own; None: the vocabulary is not one of DNA."""
    letters = bases(tokenizer)
    if letters is None:
        return None
    table = np.arange(tokenizer.size)
    for base in "ACGT":
        table[letters[base]] = letters[base.translate(PAIRS)]
    return table


def unscored(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of a DNA vocabulary that stand for no base, N and the unknown token: shown, never predicted."""
    letters = bases(tokenizer)
    if letters is None:
        return ()
    unknown = getattr(tokenizer.core.model, "unk_token", None)
    ids = (letters.get(UNKNOWN), None if unknown is None else tokenizer.core.token_to_id(unknown))
    return tuple(id for id in ids if id is not None)


def reverse_complement(text: str) -> str:
    """The other strand of a sequence, read in its own direction; letters that are no base stay.

    >>> reverse_complement("GATTACA")
    'TGTAATC'
    """
    return text[::-1].translate(PAIRS)
