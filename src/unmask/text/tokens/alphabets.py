"""Alphabets of sequences: the letters of DNA and of proteins, and what of their vocabularies is no letter.

A vocabulary belongs to an alphabet by its letters, whatever its name. One letter of each stands for any other (N, X);
it, the unknown token and the special tokens are read, but they are no answer: they are not scored and not drawn.
"""

from dataclasses import dataclass

from unmask.errors import UserError
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Alphabet:
    """The letters of a kind of sequence."""

    letters: str
    any: str  # the letter that stands for any of them
    replaces: bool  # whether only a vocabulary that reads other letters as `any` belongs to it


ENOUGH = 200  # letters: no protein of this length has only A, C, G, T and N
DNA = Alphabet("ACGT", "N", replaces=False)
PROTEIN = Alphabet("ACDEFGHIKLMNPQRSTVWY", "X", replaces=True)
ALPHABETS = (DNA, PROTEIN)


def letters_of(tokenizer: Tokenizer, alphabet: Alphabet) -> dict[str, int] | None:
    """The ids of the letters, that for any of them included if there is one; None: the vocabulary is another."""
    if alphabet.replaces and tokenizer.core.normalizer is None:
        return None
    letters = {piece: id for id, piece in enumerate(tokenizer.pieces) if piece and id not in tokenizer.specials}
    own = set(alphabet.letters)
    return letters if own <= letters.keys() <= own | {alphabet.any} else None


def alphabet_of(tokenizer: Tokenizer) -> Alphabet | None:
    """The alphabet of a vocabulary of sequences; None: it is one of text, or of other letters."""
    return next((one for one in ALPHABETS if letters_of(tokenizer, one) is not None), None)


def check_alphabet(tokenizer: Tokenizer, text: str) -> None:
    """Refuse DNA for a vocabulary of amino acids: its letters are all in it, and mean something else."""
    if len(text) >= ENOUGH and alphabet_of(tokenizer) is PROTEIN and set(text.upper()) <= {*DNA.letters, DNA.any}:
        raise UserError(
            "the sequences have no other letters than A, C, G, T and N: they are DNA, which a vocabulary of proteins "
            "would read as amino acids. Use the tokenizer dna, or a model of DNA."
        )


def unscored_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of a vocabulary of sequences that stand for no letter: N or X, and the unknown token."""
    alphabet = alphabet_of(tokenizer)
    if alphabet is None:
        return ()
    unknown = getattr(tokenizer.core.model, "unk_token", None)
    names = (alphabet.any, unknown)
    ids = (None if name is None else tokenizer.core.token_to_id(name) for name in names)
    return tuple(id for id in ids if id is not None)


def undrawn_ids(tokenizer: Tokenizer, *, ends: bool) -> tuple[int, ...]:
    """The ids of a vocabulary of sequences that are never drawn; `ends`: its end token may be, where a text may stop.

    None of any other vocabulary: what a model of text draws is what it learned.
    """
    if alphabet_of(tokenizer) is None:
        return ()
    silent = tokenizer.specials - {tokenizer.mask} - ({tokenizer.eos} if ends else set())
    return tuple(sorted(silent | set(unscored_ids(tokenizer))))
