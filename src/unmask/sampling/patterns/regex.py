"""Regular expressions in Python's syntax as minimal deterministic automata over bytes.

They match what `re.fullmatch(pattern, text, re.ASCII)` matches, encoded as UTF-8. Python's own parser reads the
pattern, so the syntax and the columns in errors are the usual ones. Bytes, because a token of a byte-level vocabulary
may end within a character.

Patterns come from strangers, so time and memory are bounded: in characters, in states before and after the machine is
made deterministic, and in the work of making it so. Part of a pattern that matches only nothing is left out, so that
every round of a repeat adds a state.
"""

import re
import re._constants as ops
import re._parser as _parser
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from unmask.errors import UserError

LONGEST = 100_000  # limit on characters
LARGEST = 20_000  # limit on states, before and after the machine is made deterministic
EFFORT = 100  # factor on that limit for states visited while it is made deterministic: a few seconds
SCAN = 8  # moves that are looked at in the time of one visit
LAST = 0x10FFFF  # the last code point

Range = tuple[int, int]  # code points or bytes, both ends included
Check = Callable[[], None]  # called every few milliseconds of long work; ends it by raising
CATEGORIES = {
    ops.CATEGORY_DIGIT: [(48, 57)],
    ops.CATEGORY_SPACE: [(9, 13), (32, 32)],
    ops.CATEGORY_WORD: [(48, 57), (65, 90), (95, 95), (97, 122)],
}
OPPOSITES = {
    ops.CATEGORY_NOT_DIGIT: ops.CATEGORY_DIGIT,
    ops.CATEGORY_NOT_SPACE: ops.CATEGORY_SPACE,
    ops.CATEGORY_NOT_WORD: ops.CATEGORY_WORD,
}
REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT)  # greediness does not change which whole texts match
SURROGATES = (0xD800, 0xDFFF)  # half characters, which no text contains
# Syntax that a finite automaton cannot express, or that is meaningless where the whole text must match.
UNSUPPORTED = {
    ops.AT: "anchors and word boundaries (^ $ \\b): a pattern always matches all of the text",
    ops.ASSERT: "lookahead and lookbehind",
    ops.ASSERT_NOT: "lookahead and lookbehind",
    ops.GROUPREF: "references to groups",
    ops.GROUPREF_EXISTS: "references to groups",
    ops.ATOMIC_GROUP: "atomic groups",
    ops.POSSESSIVE_REPEAT: "possessive repeats",
}


@dataclass(frozen=True)
class Machine:
    """States 0, 1, ...; it starts in 0. The last one is dead: nothing leads out of it."""

    table: np.ndarray  # (states, 256): the state after each byte
    accepts: np.ndarray  # (states)

    def matches(self, text: bytes) -> bool:
        state = 0
        for byte in text:
            state = self.table[state, byte]
        return bool(self.accepts[state])


@dataclass
class Net:
    """A nondeterministic automaton: from each state, free moves and moves by a range of bytes."""

    free: list[list[int]] = field(default_factory=list)
    moves: list[list[tuple[int, int, int]]] = field(default_factory=list)

    def state(self) -> int:
        if len(self.free) >= LARGEST:
            raise too_large()
        self.free.append([])
        self.moves.append([])
        return len(self.free) - 1


@dataclass(frozen=True)
class Character:
    """One character, as sequences of byte ranges."""

    encodings: list[list[Range]]


@dataclass(frozen=True)
class Alternatives:
    """One of several sequences; some of them may be empty."""

    choices: "list[Sequence]"


@dataclass(frozen=True)
class Repeat:
    """A sequence `least` to `most` times; None: any number."""

    least: int
    most: int | None
    inner: "Sequence"


Sequence = list[Character | Alternatives | Repeat]


def no_check() -> None:
    """A `Check` that lets all work go on."""


def machine_of(pattern: str, *, largest: int = LARGEST, check: Check = no_check) -> Machine:
    """The machine of a regular expression, with at most `largest` states; a syntax error names its column."""
    check_pattern_length(len(pattern))
    net = Net()
    start = net.state()
    try:
        end = sequence(net, parse_regex(pattern), start)
    except RecursionError:
        raise UserError("the pattern has too many groups within groups: use fewer.") from None
    return minimal(deterministic(net, start, end, largest, check), check)


def check_pattern_length(length: int) -> None:
    if length > LONGEST:
        raise UserError(
            f"a pattern may have {LONGEST:,} characters; saw {length:,}. Shorten it, or give fewer texts."
        )


def parse_regex(pattern: str) -> Sequence:
    """A regular expression as a tree of what an automaton can express."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about future changes of the syntax in Python
            tree = _parser.parse(pattern, re.ASCII)
    except re.error as error:
        column = 1 if error.pos is None else error.pos + 1
        raise UserError(
            f"the regular expression {short(pattern)!r} is not valid: {error.msg}, at column {column}. "
            "The syntax is that of Python's re module."
        ) from None
    except OverflowError:
        raise too_large() from None
    except ValueError as error:
        raise UserError(f"the regular expression {short(pattern)!r} is not valid: {error}.") from None
    return simplify_items(tree, tree.state.flags)


def short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def too_large(largest: int = LARGEST) -> UserError:
    return UserError(
        f"the pattern needs more than {largest:,} states: use smaller repeat counts, or fewer nested repeats."
    )


def simplify_items(items: Any, flags: int) -> Sequence:
    """Items of Python's parser, without groups and without what matches only nothing."""
    simple: Sequence = []
    for op, value in items:
        if op in UNSUPPORTED:
            raise UserError(f"a pattern cannot use {UNSUPPORTED[op]}.")
        if op is ops.SUBPATTERN:
            _, added, removed, inner = value
            simple += simplify_items(inner, (flags | added) & ~removed)
        elif op is ops.BRANCH:
            choices = [simplify_items(choice, flags) for choice in value[1]]
            simple += [Alternatives(choices)] if any(choices) else []
        elif op in REPEATS:
            least, most, inner = value
            inner = simplify_items(inner, flags)
            simple += [Repeat(least, None if most is ops.MAXREPEAT else most, inner)] if inner and most else []
        else:
            simple.append(Character(list(utf8(code_points(op, value, flags)))))
    return simple


def sequence(net: Net, items: Sequence, state: int) -> int:
    """Add states that match these items one after the other; returns the state after them."""
    for item in items:
        if isinstance(item, Character):
            end = net.state()
            for encoded in item.encodings:
                spell(net, state, end, encoded)
            state = end
        elif isinstance(item, Alternatives):
            state = join_states(net, [sequence(net, one, free_step(net, state)) for one in item.choices])
        else:
            state = repeat_item(net, item, state)
    return state


def free_step(net: Net, state: int) -> int:
    """A new state with a free move from an old one."""
    new = net.state()
    net.free[state].append(new)
    return new


def join_states(net: Net, states: Iterable[int]) -> int:
    end = net.state()
    for state in states:
        net.free[state].append(end)
    return end


def repeat_item(net: Net, item: Repeat, state: int) -> int:
    for _ in range(item.least):
        state = sequence(net, item.inner, state)
    if item.most is None:
        loop = free_step(net, state)
        net.free[sequence(net, item.inner, loop)].append(loop)
        return free_step(net, loop)
    ends = [state]
    for _ in range(item.most - item.least):
        ends.append(sequence(net, item.inner, ends[-1]))
    return join_states(net, ends)


def code_points(op: Any, value: Any, flags: int) -> list[Range]:
    """The characters that one item of a pattern matches: ranges in order, apart from each other."""
    negated, points = False, []
    if op is ops.ANY:
        return [(0, LAST)] if flags & re.DOTALL else complement([(10, 10)])
    for kind, what in value if op is ops.IN else [(op, value)]:
        if kind is ops.NEGATE:
            negated = True
        elif kind is ops.LITERAL:
            points.append((what, what))
        elif kind is ops.NOT_LITERAL:
            negated = True
            points.append((what, what))
        elif kind is ops.RANGE:
            points.append(what)
        elif kind is ops.CATEGORY:
            points += complement(CATEGORIES[OPPOSITES[what]]) if what in OPPOSITES else CATEGORIES[what]
        else:
            raise UserError(f"a pattern cannot use {kind}.")
    if flags & re.IGNORECASE:
        points += [(c + shift, c + shift) for a, shift in ((65, 32), (97, -32)) for c in letters(points, a)]
    return complement(points) if negated else complement(complement(points))


def letters(ranges: list[Range], first: int) -> list[int]:
    """Which of the 26 letters from `first` on lie in some range."""
    return [c for c in range(first, first + 26) if any(low <= c <= high for low, high in ranges)]


def complement(ranges: list[Range]) -> list[Range]:
    """All other code points."""
    rest, at = [], 0
    for low, high in sorted(ranges):
        if low > at:
            rest.append((at, low - 1))
        at = max(at, high + 1)
    return [*rest, (at, LAST)] if at <= LAST else rest


def utf8(ranges: list[Range]) -> Iterator[list[Range]]:
    """Ranges of code points as sequences of byte ranges."""
    lengths = ((0, 0x7F), (0x80, 0x7FF), (0x800, SURROGATES[0] - 1), (SURROGATES[1] + 1, 0xFFFF), (0x10000, LAST))
    for low, high in ranges:
        for first, last in lengths:
            if max(low, first) <= min(high, last):
                yield from same_length(max(low, first), min(high, last))


def same_length(low: int, high: int) -> Iterator[list[Range]]:
    """A range of code points with encodings of one length, split until the bytes vary independently."""
    for bits in (6, 12, 18):  # the last one, two, three bytes carry these bits
        rest = (1 << bits) - 1
        if low >> bits != high >> bits and high > 0x7F:
            if low & rest:
                yield from same_length(low, low | rest)
                yield from same_length((low | rest) + 1, high)
                return
            if high & rest != rest:
                yield from same_length(low, (high & ~rest) - 1)
                yield from same_length(high & ~rest, high)
                return
    yield list(zip(chr(low).encode(), chr(high).encode(), strict=True))


def spell(net: Net, state: int, end: int, encoded: list[Range]) -> None:
    for low, high in encoded[:-1]:
        new = net.state()
        net.moves[state].append((low, high, new))
        state = new
    net.moves[state].append((*encoded[-1], end))


def closure(net: Net, states: Iterable[int]) -> frozenset[int]:
    """These states and all that free moves reach."""
    seen = set(states)
    left = list(seen)
    while left:
        for new in net.free[left.pop()]:
            if new not in seen:
                seen.add(new)
                left.append(new)
    return frozenset(seen)


def deterministic(net: Net, start: int, end: int, largest: int, check: Check) -> Machine:
    """Sets of states as states; the last one is the empty set."""
    first = closure(net, [start])
    known = {first: 0}
    queue, rows, effort = [first], [], 0
    for here in queue:
        check()
        moves = [move for state in here for move in net.moves[state]]
        row = np.full(256, -1, np.int32)
        edges = sorted({edge for low, high, _ in moves for edge in (low, high + 1)})
        for low, above in pairwise(edges):
            new = closure(net, (to for a, b, to in moves if a <= low and above <= b + 1))
            effort += len(new) + len(moves) // SCAN
            if effort > EFFORT * largest:
                raise UserError(
                    f"the pattern has too many ways to match: more than {EFFORT * largest:,} steps to make it "
                    "deterministic. Use smaller or fewer nested counts."
                )
            if not new:
                continue
            if new not in known:
                if len(known) >= largest:
                    raise too_large(largest)
                known[new] = len(queue)
                queue.append(new)
            row[low:above] = known[new]
        rows.append(row)
    table = np.stack([*rows, np.full(256, -1, np.int32)])
    table[table < 0] = len(queue)
    return Machine(table, np.array([end in states for states in queue] + [False]))


def minimal(machine: Machine, check: Check) -> Machine:
    """Merge states after which the same texts match. The dead state stays last."""
    label = told_apart(machine.table, machine.accepts, check)
    _, first = np.unique(label, return_index=True)
    # In order of appearance, so that the start is 0; the dead state's class goes last.
    dead = label[-1]
    order = sorted((where, kind) for kind, where in enumerate(first) if kind != dead)
    number = {kind: i for i, (_, kind) in enumerate(order)} | {int(dead): len(order)}
    if label[0] == dead:  # nothing matches: a start of its own
        table = np.ones((2, 256), np.int32)
        return Machine(table, np.array([False, False]))
    keep = [where for where, _ in order] + [len(label) - 1]
    renamed = np.array([number[kind] for kind in range(len(first))], np.int32)
    return Machine(renamed[label[machine.table[keep]]], machine.accepts[keep])


def told_apart(table: np.ndarray, accepts: np.ndarray, check: Check) -> np.ndarray:
    """The class of each state of a table (states, letters): after two states of one class the same texts match."""
    _, kinds = np.unique(table, axis=1, return_index=True)  # bytes that lead to the same states count once
    sources = [states_before(table[:, kind]) for kind in kinds]
    label = accepts.astype(np.int64).tolist()
    members = [set(np.flatnonzero(accepts == kind).tolist()) for kind in (False, True)]
    splitters = {0, 1}
    while splitters:
        check()
        here = list(members[splitters.pop()])
        for before in sources:
            met: dict[int, list[int]] = {}
            for state in here:
                for source in before[state]:
                    met.setdefault(label[source], []).append(source)
            for kind, some in met.items():
                if len(some) == len(members[kind]):
                    continue
                new = len(members)
                members.append(set(some))
                members[kind].difference_update(some)
                for source in some:
                    label[source] = new
                # Splitting by the smaller half is enough; both are needed if the whole class was still pending.
                splitters.add(new if kind in splitters or len(some) <= len(members[kind]) else kind)
    return np.array(label)


def states_before(column: np.ndarray) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in column]
    for state, after in enumerate(column.tolist()):
        before[after].append(state)
    return before
