"""Words: the bytes that each token of a vocabulary adds to a text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError
from unmask.text.tokenizer import Tokenizer

# Decoders that give each token a text of its own, which depends at most on whether it is the first of all.
JOINING = ("ByteLevel", "Fuse", "Metaspace", "WordPiece", "none")


@dataclass(frozen=True)
class Words:
    """Tokens as bytes; a token without any cannot be part of a match."""

    first: tuple[bytes, ...]  # at the start of a text
    later: tuple[bytes, ...]  # anywhere else
    fillers: tuple[int, ...] = ()  # tokens that may stand behind the match, the first of them right behind it
    silent: frozenset[int] = frozenset()  # special tokens, the mask among them: they add no text


def words_of(tokenizer: Tokenizer) -> Words:
    """The words of a tokenizer. Behind a match may stand eos and then eos or pad; pad alone where there is no eos."""
    first, later = texts(tokenizer)
    silent = tokenizer.specials
    ends = [id for id in (tokenizer.eos, tokenizer.pad) if id is not None]
    clean = [[b"" if id in silent else word for id, word in enumerate(some)] for some in (first, later)]
    return Words(tuple(clean[0]), tuple(clean[1]), tuple(dict.fromkeys(ends)), silent)


def texts(tokenizer: Tokenizer) -> tuple[list[bytes], list[bytes]]:
    decoder = tokenizer.core.decoder
    kind = "none" if decoder is None else type(decoder).__name__
    pieces = tokenizer.pieces
    if kind == "ByteLevel":
        same = [from_stand_ins(piece) for piece in pieces]
        return same, same
    if kind not in JOINING:
        raise UserError(
            f"patterns need a tokenizer whose tokens are joined into text one by one ({', '.join(JOINING)}); "
            f"this one's decoder is {kind}. Sets of allowed tokens work with any."
        )
    if decoder is None:
        return [piece.encode() for piece in pieces], [b" " + piece.encode() if piece else b"" for piece in pieces]
    head = "a"  # any letter: what comes behind it is what a token adds
    first = [decoder.decode([piece]).encode() for piece in pieces]
    return first, [decoder.decode([head, piece])[len(head) :].encode() for piece in pieces]


def from_stand_ins(piece: str) -> bytes:
    """The bytes of a piece of a byte-level vocabulary, which writes each as a printable letter."""
    try:
        return bytes(STAND_INS[letter] for letter in piece)
    except KeyError:  # a token that was added as it stands
        return piece.encode()


def stand_ins() -> dict[str, int]:
    """Printable Latin-1 stands for itself; the other bytes, in order, for the letters from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    other = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(other)}


STAND_INS = stand_ins()


@dataclass(frozen=True)
class Letters:
    """Words in a matrix, the longest first, for walking through all of them at once."""

    order: np.ndarray  # the tokens by falling length
    letters: np.ndarray  # (v, longest): their bytes
    lengths: np.ndarray

    @staticmethod
    def of(words: Sequence[bytes]) -> "Letters":
        lengths = np.array([len(word) for word in words])
        order = np.argsort(-lengths, kind="stable")
        longest = int(lengths.max(initial=0))
        joined = b"".join(words[id].ljust(longest, b"\0") for id in order)
        return Letters(order, np.frombuffer(joined, np.uint8).reshape(len(order), longest), lengths[order])

    def after(self, table: np.ndarray, states: np.ndarray) -> np.ndarray:
        """(states, v): where each word leads from each state of a byte table, whose last is dead; no word: there."""
        at = np.repeat(states.astype(np.int32)[:, None], len(self.order), 1)
        for i in range(self.letters.shape[1]):
            active = int((self.lengths > i).sum())
            at[:, :active] = table[at[:, :active], self.letters[:active, i]]
        at[:, self.lengths == 0] = len(table) - 1
        result = np.empty_like(at)
        result[:, self.order] = at
        return result
