"""Automaton: a pattern over the tokens of a vocabulary, with the tokens put into classes.

Tokens of one class lead from every state to the same state, so all that is asked of the automaton is asked of a few
classes, whatever the size of the vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.sampling.automaton_bytes import Machine
from unmask.sampling.automaton_words import Words, after

CELLS = 250_000_000  # of the table (state, token) while it is made: 1 GB

FIRST, INSIDE = 0, 1  # the states before a match: at the start of a text, and behind given text
# Moves that no drawn token makes, as the last columns of the table.
KEEP = -3  # a given token without text: stay
CUT = -2  # a given text between two matches: the one before it must be complete
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


def anything(size: int, *, mask: int) -> Automaton:
    """Every token but the mask, everywhere: for sets of allowed tokens without a pattern."""
    classes = torch.zeros(size, dtype=torch.long)
    classes[mask] = 1
    table = torch.tensor([[0, 3, 0, 0, 0], [1, 3, 1, 1, 1], [2, 3, 2, 2, 2], [3, 3, 3, 3, 3]])
    return Automaton(classes, table, torch.tensor([True, True, True, False]))


def over_tokens(machine: Machine, words: Words, *, ends: bool = True, banned: tuple[int, ...] = ()) -> Automaton:
    """The automaton over tokens of a machine over bytes.

    ends    eos and padding may stand behind a match that is shorter than its place
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
    """The machine's states between tokens, and a row for FIRST, INSIDE and each: 2 + the next one's place, or −1."""
    dead = len(machine.table) - 1
    start = np.zeros(1, np.int32)
    raw = [after(machine.table, start, some, dead=dead)[0] for some in (words.first, words.later)]
    place = np.full(dead + 1, -1, np.int32)
    states: list[int] = []

    def meet(found: np.ndarray) -> list[int]:
        new = [int(state) for state in np.unique(found) if state != dead and place[state] < 0]
        place[new] = np.arange(len(states), len(states) + len(new)) + 2
        states.extend(new)
        if (len(states) + 2) * len(words.first) > CELLS:
            raise UserError("the pattern is too large for this vocabulary: use smaller repeat counts.")
        return new

    new = meet(np.stack(raw))
    while new:
        found = after(machine.table, np.array(new), words.later, dead=dead)
        raw += list(found)
        new = meet(found)
    return states, [place[row] for row in raw]


def same_columns(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class of each column, and one column of each class. Row by row: exact, and never sorts whole columns."""
    classes = np.zeros(table.shape[1], np.int64)
    for row in table:
        _, classes = np.unique(classes * (len(table) + 1) + row, return_inverse=True)
    _, first = np.unique(classes, return_index=True)
    return classes, first


def without_dead_ends(table: np.ndarray, accepts: np.ndarray) -> np.ndarray:
    """States from which no tokens lead to a match are dead: letters may be missing from the vocabulary."""
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
