"""Automaton: a pattern over the tokens of a vocabulary, with the tokens grouped into classes.

Tokens of one class lead from every state to the same state, so the automaton works with a few classes, whatever the
size of the vocabulary.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.sampling.patterns.regex import Check, Machine, no_check
from unmask.text.tokens.tokenizer import Tokenizer

# Decoders in which a token's text depends at most on whether the token is the first one.
JOINING = ("ByteLevel", "Fuse", "Metaspace", "WordPiece", "none")


@dataclass(frozen=True)
class Words:
    """Tokens as bytes; a token without bytes cannot be part of a match."""

    first: tuple[bytes, ...]  # at the start of a text
    later: tuple[bytes, ...]  # anywhere else
    end: int | None = None  # the token that fills the space after a match; None: a match fills all of it
    silent: frozenset[int] = frozenset()  # special tokens, including the mask: they add no text


def words_of(tokenizer: Tokenizer) -> Words:
    """The words of a tokenizer. After a match comes eos, as often as there is space; pad if there is no eos."""
    first, later = token_texts(tokenizer)
    silent = tokenizer.specials
    end = tokenizer.pad if tokenizer.eos is None else tokenizer.eos
    clean = [[b"" if id in silent else word for id, word in enumerate(some)] for some in (first, later)]
    return Words(tuple(clean[0]), tuple(clean[1]), end, silent)


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


CELLS = 2**25  # limit on a table (state, class of tokens): 256 MB
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

    @property
    def columns(self) -> int:
        """The number of classes."""
        return self.table.shape[1] + KEEP

    @cached_property
    def any_move(self) -> "Moves":
        return self.moves(torch.arange(self.columns, device=self.table.device))

    def moves(self, classes: Int[Tensor, " k"]) -> "Moves":
        return Moves.of(self.table[:, classes])

    @cached_property
    def to(self) -> Int[Tensor, "c s"]:
        """The table by columns."""
        return self.table.T.contiguous()

    @cached_property
    def counts(self) -> Float[Tensor, " c"]:
        """The number of tokens of each class."""
        return torch.bincount(self.classes, minlength=self.columns).float()

    @cached_property
    def members(self) -> Int[Tensor, " c"]:
        """A token of each class; without meaning for a class that has none."""
        member = torch.zeros(self.columns, dtype=torch.long, device=self.classes.device)
        return member.index_copy(0, self.classes, torch.arange(self.size, device=self.classes.device))

    @cached_property
    def end(self) -> int:
        """The state after a match that is followed by nothing but its end; the dead state if there is none."""
        return len(self.table) - 2

    @property
    def bytes(self) -> int:
        """An upper bound on its memory, with all that is cached here."""
        return 8 * self.size + (2 * 8 + Moves.BYTES) * self.table.numel()


@dataclass(frozen=True, eq=False)
class Moves:
    """Which states lead to which: sparse matrices of zeros and ones, without the dead state."""

    BYTES: ClassVar[int] = 40  # memory of one move, an upper bound

    forth: Tensor  # (s s), from columns to rows
    back: Tensor  # (s s), from rows to columns

    @staticmethod
    def of(table: Int[Tensor, "s k"]) -> "Moves":
        states, dead = len(table), len(table) - 1
        after = table.sort(1).values
        new = torch.ones_like(after, dtype=torch.bool)
        new[:, 1:] = after[:, 1:] != after[:, :-1]
        source, column = (new & (after != dead)).nonzero(as_tuple=True)
        target = after[source, column]
        return Moves(matrix(target, source, states), matrix(source, target, states))

    def onward(self, here: Float[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        """Above 0 for the states that some state of `here` leads to."""
        return (self.forth @ here.T).T

    def before(self, here: Float[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        """Above 0 for the states that lead to some state of `here`."""
        return (self.back @ here.T).T


def matrix(row: Int[Tensor, " n"], column: Int[Tensor, " n"], size: int) -> Tensor:
    """A sparse matrix with ones at these places."""
    ones = torch.ones(len(row), device=row.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse matrices a beta version
        return torch.sparse_coo_tensor(torch.stack([row, column]), ones, (size, size)).coalesce().to_sparse_csr()


def anything(size: int, *, mask: int, banned: tuple[int, ...] = ()) -> Automaton:
    """An automaton that allows every token except the mask: for sets of allowed tokens without a pattern."""
    classes = torch.zeros(size, dtype=torch.long)
    classes[[mask, *banned]] = 1
    table = torch.tensor([[0, 3, 0, 0, 0], [1, 3, 1, 1, 1], [2, 3, 2, 2, 2], [3, 3, 3, 3, 3]])
    return Automaton(classes, table, torch.tensor([True, True, True, False]))


def over_tokens(
    machine: Machine, words: Words, *, ends: bool = True, banned: tuple[int, ...] = (), check: Check = no_check
) -> Automaton:
    """The automaton over tokens of a machine over bytes.

    ends    a match that is shorter than its blank may be followed by the end token
    banned  tokens that are never used
    """
    states, classes, small = explore_states(machine, words, check)
    accepts = np.array([machine.accepts[0], machine.accepts[0], *machine.accepts[states], True, False])
    end, dead, count = len(small), len(small) + 1, small.shape[1]
    table = np.full((dead + 1, count + 2), dead, np.int64)  # two more classes: the end token, and those banned
    table[:end, :count] = np.where(small < 0, dead, small)
    if ends and words.end is not None:
        table[np.flatnonzero(accepts), count] = end
        classes[words.end] = count
    classes[list(banned)] = count + 1
    return Automaton(
        torch.from_numpy(classes),
        torch.from_numpy(np.concatenate([without_dead_ends(table, accepts), special_moves(accepts)], 1)),
        torch.from_numpy(accepts),
        words.silent,
    )


def explore_states(machine: Machine, words: Words, check: Check) -> tuple[list[int], np.ndarray, np.ndarray]:
    """The machine's states between tokens; the tokens' classes; and a table of FIRST, INSIDE and each state by class.

    The table has 2 + the index of the next state, or −1. Some rows are made at a time, and a class is split as soon
    as its tokens lead to different states, so a large vocabulary takes little memory.
    """
    later = WordTable.of(words.later)
    first = later if words.first == words.later else WordTable.of(words.first)
    place = np.full(len(machine.table), -1, np.int32)
    states: list[int] = []
    classes = np.zeros(len(words.first), np.int64)
    portions: list[tuple[np.ndarray, np.ndarray]] = []  # rows by class, and the classes before them by class

    def numbered(numbers: np.ndarray) -> np.ndarray:
        """The numbers of these states of the machine, in order of appearance."""
        met = np.zeros(len(place), bool)
        met[numbers] = True
        met[-1] = False  # the dead state has no number
        new = np.flatnonzero(met & (place < 0))
        place[new] = np.arange(len(states), len(states) + len(new)) + 2
        states.extend(new.tolist())
        return place[numbers]

    rows = [numbered(some.after(machine.table, np.zeros(1, np.int32))) for some in (first, later)]
    done = 0
    while rows or done < len(states):
        check()
        some = states[done : done + PORTION]
        if some:
            rows.append(numbered(later.after(machine.table, np.array(some))))
            done += len(some)
        if sum(map(len, rows)) < PORTION and done < len(states):
            continue
        joined, rows = np.concatenate(rows), []
        split, one = same_columns(np.concatenate([classes[None], joined]))
        portions.append((joined[:, one], classes[one]))
        classes = split
        if (len(states) + 2) * len(one) > CELLS:
            raise UserError(
                f"the pattern has {len(states):,} states and {len(one):,} kinds of tokens, a table of more than "
                f"{CELLS:,} numbers: use smaller repeat counts, or fewer texts."
            )
    return states, classes, by_class(portions)


def by_class(portions: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The rows of all portions by the classes after the last one."""
    tables, now = [], np.arange(portions[-1][0].shape[1])
    for rows, before in reversed(portions):
        tables.append(rows[:, now])
        now = before[now]
    return np.concatenate(tables[::-1])


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
    before, alive = Moves.of(torch.from_numpy(table)).forth, accepts.copy()
    starts, sources = before.crow_indices().numpy(), before.col_indices().numpy()
    left = np.flatnonzero(alive).tolist()
    while left:
        state = left.pop()
        new = sources[starts[state] : starts[state + 1]]
        new = new[~alive[new]]
        alive[new] = True
        left.extend(new.tolist())
    return np.where(alive[table], table, len(table) - 1)


def special_moves(accepts: np.ndarray) -> np.ndarray:
    """(states, 3): the columns KEEP, CUT and BREAK."""
    states = np.arange(len(accepts))
    cut = np.where(accepts, INSIDE, len(accepts) - 1)
    cut[[FIRST, INSIDE]] = INSIDE
    broken = cut.copy()
    broken[FIRST] = FIRST
    return np.stack([states, cut, broken], 1)
