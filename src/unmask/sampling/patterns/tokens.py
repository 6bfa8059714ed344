"""Automaton: a pattern over the tokens of a vocabulary, with the tokens grouped into classes.

Tokens of one class lead from every state to the same state, so the automaton works with a few classes, whatever the
size of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.sampling.patterns.regex import Machine
from unmask.text.tokens.tokenizer import Tokenizer

# Decoders in which a token's text depends at most on whether the token is the first one.
JOINING = ("ByteLevel", "Fuse", "Metaspace", "WordPiece", "none")


@dataclass(frozen=True)
class Words:
    """Tokens as bytes; a token without bytes cannot be part of a match."""

    first: tuple[bytes, ...]  # at the start of a text
    later: tuple[bytes, ...]  # anywhere else
    fillers: tuple[int, ...] = ()  # tokens allowed after the match; the first of them directly after it
    silent: frozenset[int] = frozenset()  # special tokens, including the mask: they add no text


def words_of(tokenizer: Tokenizer) -> Words:
    """The words of a tokenizer. Allowed after a match: eos, then eos or pad; only pad if there is no eos."""
    first, later = token_texts(tokenizer)
    silent = tokenizer.specials
    ends = [id for id in (tokenizer.eos, tokenizer.pad) if id is not None]
    clean = [[b"" if id in silent else word for id, word in enumerate(some)] for some in (first, later)]
    return Words(tuple(clean[0]), tuple(clean[1]), tuple(dict.fromkeys(ends)), silent)


def token_texts(tokenizer: Tokenizer) -> tuple[list[bytes], list[bytes]]:
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
    head = "a"  # any letter: the text after it is what a token adds
    first = [decoder.decode([piece]).encode() for piece in pieces]
    return first, [decoder.decode([head, piece])[len(head) :].encode() for piece in pieces]


def from_stand_ins(piece: str) -> bytes:
    """The bytes of a piece of a byte-level vocabulary, which writes each byte as a printable letter."""
    try:
        return bytes(STAND_INS[letter] for letter in piece)
    except KeyError:  # an added token, stored as plain text
        return piece.encode()


def stand_ins() -> dict[str, int]:
    """The byte of each letter: printable Latin-1 is itself; letters from U+0100 on are the other bytes in order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    other = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(other)}


STAND_INS = stand_ins()


@dataclass(frozen=True)
class WordTable:
    """Words in a matrix, the longest first, to run the automaton over all of them at once."""

    order: np.ndarray  # the tokens by falling length
    letters: np.ndarray  # (v, longest): their bytes
    lengths: np.ndarray

    @staticmethod
    def of(words: Sequence[bytes]) -> "WordTable":
        lengths = np.array([len(word) for word in words])
        order = np.argsort(-lengths, kind="stable")
        longest = int(lengths.max(initial=0))
        joined = b"".join(words[id].ljust(longest, b"\0") for id in order)
        return WordTable(order, np.frombuffer(joined, np.uint8).reshape(len(order), longest), lengths[order])

    def after(self, table: np.ndarray, states: np.ndarray) -> np.ndarray:
        """(states, v): where each word leads from each state of a byte table; an empty word: the dead state."""
        at = np.repeat(states.astype(np.int32)[:, None], len(self.order), 1)
        for i in range(self.letters.shape[1]):
            active = int((self.lengths > i).sum())
            at[:, :active] = table[at[:, :active], self.letters[:active, i]]
        at[:, self.lengths == 0] = len(table) - 1
        result = np.empty_like(at)
        result[:, self.order] = at
        return result


CELLS = 250_000_000  # limit on the table (state, token) while it is built: 1 GB
PORTION = 32  # start states at a time

FIRST, INSIDE = 0, 1  # the states before a match: at the start of a text, and after given text
# Moves of given tokens only, as the last columns of the table.
KEEP = -3  # a given token without text: stay
CUT = -2  # given text between two matches: the match before it must be complete
BREAK = -1  # a given token without text between two matches


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton over tokens. The last state is dead."""

    classes: Int[Tensor, " v"]  # of each token
    table: Int[Tensor, "s c"]  # the state that follows; the last three columns are KEEP, CUT and BREAK
    accepts: Bool[Tensor, " s"]
    silent: frozenset[int] = frozenset()  # tokens that add no text

    @property
    def size(self) -> int:
        return len(self.classes)

    @cached_property
    def any_move(self) -> Float[Tensor, "s s"]:
        """1 where some token leads from one state to another."""
        return self.moves(self.classes)

    def moves(self, classes: Int[Tensor, " k"]) -> Float[Tensor, "s s"]:
        """1 where a token of one of these classes leads from one state to another."""
        found = torch.zeros(len(self.table), len(self.table), device=self.table.device)
        return found.scatter_(1, self.table[:, classes.unique()], 1.0)

    @cached_property
    def to(self) -> Int[Tensor, "c s"]:
        """The table by columns."""
        return self.table.T.contiguous()


def anything(size: int, *, mask: int) -> Automaton:
    """An automaton that allows every token except the mask: for sets of allowed tokens without a pattern."""
    classes = torch.zeros(size, dtype=torch.long)
    classes[mask] = 1
    table = torch.tensor([[0, 3, 0, 0, 0], [1, 3, 1, 1, 1], [2, 3, 2, 2, 2], [3, 3, 3, 3, 3]])
    return Automaton(classes, table, torch.tensor([True, True, True, False]))


def over_tokens(machine: Machine, words: Words, *, ends: bool = True, banned: tuple[int, ...] = ()) -> Automaton:
    """The automaton over tokens of a machine over bytes.

    ends    eos and padding may follow a match that is shorter than its blank
    banned  tokens that are never used
    """
    states, rows = explored(machine, words)
    accepts = [machine.accepts[0], machine.accepts[0], *machine.accepts[states]]
    end, dead = len(rows), len(rows) + 1
    table = np.concatenate([np.stack(rows), np.full((2, len(words.first)), -1, np.int32)])
    table[table < 0] = dead
    if ends and words.fillers:
        table[np.flatnonzero(accepts), words.fillers[0]] = end
        table[end, list(words.fillers)] = end
    table[:, list(banned)] = dead
    classes, first = same_columns(table)
    accepted = np.array([*accepts, True, False])
    small = without_dead_ends(table[:, first], accepted)
    return Automaton(
        torch.from_numpy(classes),
        torch.from_numpy(np.concatenate([small, special_moves(accepted)], 1).astype(np.int64)),
        torch.from_numpy(accepted),
        words.silent,
    )


def explored(machine: Machine, words: Words) -> tuple[list[int], list[np.ndarray]]:
    """The machine's states between tokens, and rows for FIRST, INSIDE and each: 2 + the index of the next, or −1."""
    later = WordTable.of(words.later)
    first = later if words.first == words.later else WordTable.of(words.first)
    place = np.full(len(machine.table), -1, np.int32)
    states: list[int] = []

    def placed(found: np.ndarray) -> list[np.ndarray]:
        met = np.zeros(len(place), bool)
        met[found] = True
        met[-1] = False  # the dead state has no index
        new = np.flatnonzero(met & (place < 0))
        place[new] = np.arange(len(states), len(states) + len(new)) + 2
        states.extend(new.tolist())
        if (len(states) + 2) * len(words.first) > CELLS:
            raise UserError(
                "the pattern is too large for this vocabulary: use smaller repeat counts, or fewer texts."
            )
        return list(place[found])

    rows = [row for some in (first, later) for row in placed(some.after(machine.table, np.zeros(1, np.int32)))]
    while len(rows) - 2 < len(states):
        some = states[len(rows) - 2 :][:PORTION]
        rows += placed(later.after(machine.table, np.array(some)))
    return states, rows


def same_columns(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class of each column, and one column of each class."""
    # Columns with equal randomly weighted sums are equal, except with probability about 2^-30, which is checked.
    weights = np.random.default_rng(0).integers(0, 2**64, len(table), dtype=np.uint64)
    sums = np.zeros(table.shape[1], np.uint64)
    for weight, row in zip(weights, table, strict=True):
        sums += weight * row.astype(np.uint64)
    _, first, classes = np.unique(sums, return_index=True, return_inverse=True)
    if all(np.array_equal(row, row[first][classes]) for row in table):
        return classes, first
    _, first, classes = np.unique(table, axis=1, return_index=True, return_inverse=True)
    return classes.reshape(-1), first


def without_dead_ends(table: np.ndarray, accepts: np.ndarray) -> np.ndarray:
    """The table with states from which no tokens lead to a match made dead: the vocabulary may lack letters."""
    alive = accepts.copy()
    while True:
        more = alive | alive[table].any(1)
        if (more == alive).all():
            break
        alive = more
    return np.where(alive[table], table, len(table) - 1)


def special_moves(accepts: np.ndarray) -> np.ndarray:
    """(states, 3): the columns KEEP, CUT and BREAK."""
    states = np.arange(len(accepts))
    cut = np.where(accepts, INSIDE, len(accepts) - 1)
    cut[[FIRST, INSIDE]] = INSIDE
    broken = cut.copy()
    broken[FIRST] = FIRST
    return np.stack([states, cut, broken], 1)
