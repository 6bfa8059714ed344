"""Constraint: what a canvas must match. Tokens after which no match is possible are never drawn.

A canvas is read as a chain: a visible token is one move of the automaton, a mask is any move. A state is reachable at
a position if some filling of the masks before it leads there; it is hopeful if some filling of the masks after it
leads from there to a match. A token may be drawn where it leads from a reachable to a hopeful state. Then a filling
that matches always exists, so no draw runs into a dead end. Where only one token may be drawn, no network is needed.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.sampling.patterns.regex import LARGEST, Check, check_pattern_length, machine_of, no_check, short
from unmask.sampling.patterns.tokens import (
    BREAK,
    CELLS,
    CUT,
    FIRST,
    INSIDE,
    KEEP,
    Automaton,
    Moves,
    Words,
    over_tokens,
)
from unmask.text.prompt.canvas import Canvas

HELD = 2**28  # limit on the booleans for (row, position, state)
PORTION = 2**22  # moves looked at together


@dataclass(frozen=True)
class Chain:
    """Rows as moves: a given or drawn token is one column of the table, a mask any allowed one."""

    automaton: Automaton
    column: Int[Tensor, "b l"]  # of the table; without meaning where hidden
    hidden: Bool[Tensor, "b l"]
    own_moves: Mapping[int, Moves]  # of a mask at positions with a set of allowed tokens
    final: Bool[Tensor, " s"]  # where a row may end

    def start(self) -> Float[Tensor, "b s"]:
        """1 for the states reachable before the first position."""
        here = torch.zeros(len(self.column), len(self.final), device=self.final.device)
        here[:, FIRST] = 1.0
        return here

    def onward(self, here: Float[Tensor, "b s"], i: int) -> Float[Tensor, "b s"]:
        """1 for the states reachable after position i, given those before it; the dead state may be among them."""
        by_mask = by_token = None
        if self.some_hidden[i]:
            by_mask = self.moves(i).onward(here)
        if not self.all_hidden[i]:
            by_token = torch.zeros_like(here).scatter_add_(1, self.automaton.to[self.column[:, i]], here)
        return self.chosen(by_mask, by_token, i).clamp_(max=1.0)

    def back(self, here: Float[Tensor, "b s"], i: int) -> Float[Tensor, "b s"]:
        """1 for the states before position i that are hopeful, given those after it."""
        by_mask = by_token = None
        if self.some_hidden[i]:
            by_mask = self.moves(i).before(here)
        if not self.all_hidden[i]:
            by_token = here.gather(1, self.automaton.to[self.column[:, i]])
        return self.chosen(by_mask, by_token, i).clamp_(max=1.0)

    def moves(self, i: int) -> Moves:
        return self.own_moves.get(i, self.automaton.any_move)

    def chosen(self, by_mask: Tensor | None, by_token: Tensor | None, i: int) -> Float[Tensor, "b s"]:
        """The result for each row, by its kind of move at position i."""
        if by_mask is None or by_token is None:
            moved = by_token if by_mask is None else by_mask
            assert moved is not None
            return moved
        return torch.where(self.hidden[:, i, None], by_mask, by_token)

    def forward(self) -> Bool[Tensor, "b i s"]:
        """Whether a state is reachable before each position, and after the last."""
        here = self.start()
        reached = [here > 0]
        for i in range(self.column.shape[1]):
            here = self.onward(here, i)
            reached.append(here > 0)
        return torch.stack(reached, 1)

    def backward(self) -> Bool[Tensor, "b i s"]:
        """Whether a state is hopeful before each position, and after the last."""
        here = self.final.float().repeat(len(self.column), 1)
        hopeful = [here > 0]
        for i in reversed(range(self.column.shape[1])):
            here = self.back(here, i)
            hopeful.append(here > 0)
        return torch.stack(hopeful[::-1], 1)

    def stuck(self) -> list[int | None]:
        """The first position of each row that no filling gets past; l if no filling is a match; else None."""
        reached = self.forward()
        alive = reached[:, 1:, :-1].any(2)  # the last state is dead
        done = (reached[:, -1] & self.final).any(1)
        first = torch.where(alive.all(1), alive.shape[1], (~alive).long().argmax(1))
        return [None if ok else int(at) for ok, at in zip(done.tolist(), first.tolist(), strict=True)]

    def open(self, reached: Bool[Tensor, "n s"], hopeful: Bool[Tensor, "n s"]) -> Bool[Tensor, "n c"]:
        """Which classes lead from a reachable to a hopeful state."""
        table = self.automaton.table[:, :KEEP]
        ways = torch.zeros(len(reached), table.shape[1], device=table.device)
        place, state = reached.nonzero(as_tuple=True)
        portion = max(1, PORTION // table.shape[1])
        for some, here in zip(place.split(portion), state.split(portion), strict=True):
            ways.index_add_(0, some, hopeful[some[:, None], table[here]].float())
        return ways > 0

    @cached_property
    def some_hidden(self) -> list[bool]:
        return self.hidden.any(0).tolist()

    @cached_property
    def all_hidden(self) -> list[bool]:
        return self.hidden.all(0).tolist()


def chain_of(automaton: Automaton, canvas: Canvas, *, own_moves: Mapping[int, Moves], whole: bool) -> Chain:
    """A canvas as a chain. Padding beyond a row's length is a frozen mask: it adds no text."""
    tokens, given = canvas.tokens, canvas.frozen
    silent = torch.isin(tokens, torch.tensor(sorted({*automaton.silent, canvas.mask}), device=tokens.device))
    columns = automaton.table.shape[1]
    own = automaton.classes[tokens.clamp(max=automaton.size - 1)]
    if whole:
        column = torch.where(given & silent, columns + KEEP, own)
    else:
        column = torch.where(given, torch.where(silent, columns + BREAK, columns + CUT), own)
    final = automaton.accepts.clone()
    if not whole:  # after given text no match is open
        final[[FIRST, INSIDE]] = True
    return Chain(automaton, column, canvas.hidden, own_moves, final)


@dataclass(frozen=True, eq=False)
class Constraint:
    """A pattern for the drawn text, or for the whole text, and sets of allowed tokens by position."""

    automaton: Automaton
    allowed: Mapping[int, Collection[int]] = field(default_factory=dict)  # position -> allowed ids
    whole: bool = False  # the pattern applies to the whole text; False: to each drawn span separately
    about: str = "the allowed tokens"  # its name in errors

    def __post_init__(self) -> None:
        for position, ids in self.allowed.items():
            wrong = [id for id in ids if not 0 <= id < self.automaton.size]
            if position < 0 or wrong:
                raise UserError(
                    f"allowed tokens are ids in 0..{self.automaton.size - 1} at positions from 0 on; "
                    f"saw {wrong[0] if wrong else 'some'} at position {position}."
                )

        if self.cells > CELLS:
            raise UserError(
                f"{self.about} with {len(self.sets)} sets of allowed tokens needs {self.cells:,} numbers; at most "
                f"{CELLS:,} are possible. Use fewer different sets, or smaller repeat counts."
            )

    @cached_property
    def sets(self) -> dict[int, frozenset[int]]:
        """The classes of the allowed tokens by position."""
        classes = self.automaton.classes.tolist()
        return {place: frozenset(classes[id] for id in ids) for place, ids in self.allowed.items()}

    @property
    def cells(self) -> int:
        """The most moves that the sets have together; equal sets count once."""
        return len(self.automaton.table) * sum(map(len, set(self.sets.values())))

    @property
    def bytes(self) -> int:
        """An upper bound on its memory."""
        listed = sum(map(len, self.allowed.values()))
        return self.automaton.bytes + Moves.BYTES * self.cells + 200 * (len(self.allowed) + listed)

    @property
    def work(self) -> int:
        """The cost of a network call for each position, in numbers that are looked at."""
        return len(self.automaton.table) * max(self.automaton.table.shape)

    def chain(self, canvas: Canvas) -> Chain:
        return chain_of(self.automaton, canvas, own_moves=self.own_moves, whole=self.whole)

    @cached_property
    def own_moves(self) -> dict[int, Moves]:
        """The moves of a mask at the positions with a set of allowed tokens."""
        device = self.automaton.table.device
        moves = {
            classes: self.automaton.moves(torch.tensor(sorted(classes), dtype=torch.long, device=device))
            for classes in set(self.sets.values())
        }
        return {place: moves[classes] for place, classes in self.sets.items()}

    def uses(self, token: int) -> bool:
        """Whether a token can be part of a match."""
        automaton, dead = self.automaton, len(self.automaton.table) - 1
        return token < automaton.size and bool((automaton.table[:, automaton.classes[token]] != dead).any())

    def on(self, device: torch.device) -> "Constraint":
        """The same on another device."""
        old = self.automaton
        new = Automaton(old.classes.to(device), old.table.to(device), old.accepts.to(device), old.silent)
        return replace(self, automaton=new)

    def check(self, canvas: Canvas) -> None:
        """Refuse a canvas that no filling can make match, before any network call."""
        rows, length = canvas.tokens.shape
        states = len(self.automaton.table)
        if rows * length * states > HELD:
            raise UserError(
                f"{self.about} has {states:,} states, too many for {rows:,} texts of {length:,} tokens at once: use "
                "smaller repeat counts, shorter texts or a smaller batch."
            )
        for position in [place for place in self.allowed if place < length]:
            given = canvas.tokens[canvas.frozen[:, position], position].tolist()
            wrong = [id for id in given if id not in self.allowed[position] and id != canvas.mask]
            if wrong:
                raise UserError(
                    f"the token {wrong[0]} given at position {position} is not among those allowed there."
                )
        for row, at in enumerate(self.chain(canvas).stuck()):
            if at is None:
                continue
            which = f"row {row}: " if len(canvas.tokens) > 1 else ""
            why = (
                f"no way to fill it gets past position {at}" if at < length else "at its end the match is unfinished"
            )
            raise UserError(
                f"{which}no text of {length} tokens can match {self.about}: {why}. "
                "Change the length, the given text or the pattern."
            )

    def matches(self, canvas: Canvas) -> Bool[Tensor, " b"]:
        """Which rows match; a row with masks matches if some filling does."""
        return torch.tensor([at is None for at in self.chain(canvas).stuck()], device=canvas.tokens.device)

    def prune(
        self, canvas: Canvas, row: Int[Tensor, " n"], position: Int[Tensor, " n"], logits: Float[Tensor, "n v"]
    ) -> Float[Tensor, "n v"]:
        """Logits −∞ for tokens after which no match is possible, at these hidden positions of the canvas."""
        rows, index = row.unique(return_inverse=True)
        ways = self.ways(Canvas(canvas.tokens[rows], canvas.frozen[rows], canvas.mask))
        return self.left(ways.open(index, position), position, logits)

    def ways(self, canvas: Canvas) -> "Ways":
        """Every filling of a canvas that matches."""
        chain = self.chain(canvas)
        reached, hopeful = chain.forward(), chain.backward()
        return Ways(chain, reached & hopeful, self)

    def room(self, canvas: Canvas) -> int:
        """Positions up to the last one that a match, with its end token, or a set of allowed tokens can need.

        Refuses a canvas that no filling can make match.
        """
        self.check(canvas)
        live = self.ways(canvas).live.any(0)
        live[:, self.automaton.end] = False
        needed = live.any(1).nonzero().squeeze(-1).tolist()
        return max(1 + max(needed, default=0), 1 + max(self.allowed, default=-1))

    def left(
        self, ways: Bool[Tensor, "n c"], position: Int[Tensor, " n"], logits: Float[Tensor, "n v"]
    ) -> Float[Tensor, "n v"]:
        """Logits of the tokens whose class is open and which are allowed at these positions."""
        keep = ways[:, self.automaton.classes]
        for place in self.allowed.keys() & set(position.tolist()):
            ids = torch.tensor(sorted(self.allowed[place]), dtype=torch.long, device=keep.device)
            keep[position == place] &= torch.zeros_like(keep[0]).index_fill(0, ids, True)
        # A network may have more ids than there are tokens; the extra ids have no text.
        keep = torch.nn.functional.pad(keep, (0, logits.shape[-1] - keep.shape[-1]))
        return logits.masked_fill(~keep, -torch.inf)

    def drawn(
        self,
        canvas: Canvas,
        row: Int[Tensor, " n"],
        position: Int[Tensor, " n"],
        logits: Float[Tensor, "n v"],
        draw: Callable[[Int[Tensor, " k"], Float[Tensor, "k v"]], Int[Tensor, " k"]],
    ) -> Int[Tensor, " n"]:
        """A token for each place: in every row one after the other from the left, each restricted by those before.

        `draw(which, logits)` draws for some of the n places. There is no network call in between. One sweep is
        enough: what is hopeful after a place does not depend on the tokens before it.
        """
        rows, index = row.unique(return_inverse=True)
        chain = self.chain(Canvas(canvas.tokens[rows], canvas.frozen[rows], canvas.mask))
        hopeful, here = chain.backward(), chain.start()
        result = torch.empty_like(row)
        turns: dict[int, list[int]] = {}
        for i, place in enumerate(position.tolist()):
            turns.setdefault(place, []).append(i)
        for place in range(max(turns) + 1):
            onward = chain.onward(here, place)
            if place in turns:
                which = torch.tensor(turns[place], device=row.device)
                mine = index[which]
                ways = chain.open((here[mine] > 0) & hopeful[mine, place], hopeful[mine, place + 1])
                result[which] = draw(which, self.left(ways, position[which], logits[which]))
                to = self.automaton.to[self.automaton.classes[result[which]]]
                onward[mine] = torch.zeros_like(onward[mine]).scatter_add_(1, to, here[mine]).clamp_(max=1.0)
            here = onward
        return result


@dataclass(frozen=True, eq=False)
class Ways:
    """The fillings of a canvas that match. Committing a token that all of them have changes none of this."""

    chain: Chain
    live: Bool[Tensor, "b i s"]  # the states of these fillings before each position, and after the last
    constraint: Constraint

    def open(self, row: Int[Tensor, " n"], position: Int[Tensor, " n"]) -> Bool[Tensor, "n c"]:
        """The classes of tokens that some filling has at these hidden positions."""
        return self.chain.open(self.live[row, position], self.live[row, position + 1])

    def sole(self, row: Int[Tensor, " n"], position: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """The token that every filling has at these hidden positions; −1 where several are possible."""
        automaton, ways = self.chain.automaton, self.open(row, position)
        token = torch.where(ways.float() @ automaton.counts == 1, automaton.members[ways.float().argmax(1)], -1)
        for place in self.constraint.allowed.keys() & set(position.tolist()):
            ids = torch.tensor(sorted(self.constraint.allowed[place]), device=row.device)
            here = (position == place).nonzero().squeeze(-1)
            left = ways[here][:, automaton.classes[ids]]
            token[here] = torch.where(left.sum(1) == 1, ids[left.float().argmax(1)], -1)
        return token


def matching(
    pattern: str,
    words: Words,
    *,
    whole: bool = False,
    ends: bool = True,
    largest: int = LARGEST,
    check: Check = no_check,
) -> Constraint:
    """Text that matches a regular expression. `ends`: shorter text is followed by the end token."""
    automaton = over_tokens(machine_of(pattern, largest=largest, check=check), words, ends=ends, check=check)
    return Constraint(automaton, whole=whole, about=f"the pattern {short(pattern)!r}")


def one_of(
    texts: Sequence[str],
    words: Words,
    *,
    whole: bool = False,
    ends: bool = True,
    largest: int = LARGEST,
    check: Check = no_check,
) -> Constraint:
    if not texts:
        raise UserError("a list of texts to choose from needs at least one text.")
    check_pattern_length(sum(map(len, texts)) + len(texts) - 1)
    constraint = matching(
        "|".join(re.escape(text) for text in texts), words, whole=whole, ends=ends, largest=largest, check=check
    )
    return replace(constraint, about=f"one of the {len(texts)} texts {short(', '.join(texts))!r}")
