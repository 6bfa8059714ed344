"""The chain of a canvas: which states of an automaton some filling reaches, and from which some filling matches."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.sampling.automaton import BREAK, CUT, FIRST, INSIDE, KEEP, Automaton
from unmask.text.canvas import Canvas

CELLS = 2**25  # booleans held at once for (place, state, class)


@dataclass(frozen=True)
class Chain:
    """Rows as moves: of a given or drawn token one column of the table, of a mask any that is allowed."""

    automaton: Automaton
    column: Int[Tensor, "b l"]  # of the table; of no meaning where hidden
    hidden: Bool[Tensor, "b l"]
    own_moves: Mapping[int, Float[Tensor, "s s"]]  # of a mask at positions with a set of allowed tokens
    final: Bool[Tensor, " s"]  # where a row may end

    def start(self) -> Float[Tensor, "b s"]:
        """1 for the states reachable before the first position."""
        here = torch.zeros(len(self.column), len(self.final), device=self.final.device)
        here[:, FIRST] = 1.0
        return here

    def onward(self, here: Float[Tensor, "b s"], i: int) -> Float[Tensor, "b s"]:
        """1 for the states reachable behind position i, given those before it. The dead one may be among them."""
        by_mask = by_token = None
        if self.some_hidden[i]:
            by_mask = here @ self.own_moves.get(i, self.automaton.any_move)
        if not self.all_hidden[i]:
            by_token = torch.zeros_like(here).scatter_add_(1, self.automaton.to[self.column[:, i]], here)
        return self.chosen(by_mask, by_token, i).clamp_(max=1.0)

    def back(self, here: Float[Tensor, "b s"], i: int) -> Float[Tensor, "b s"]:
        """1 for the states before position i that are hopeful, given those behind it."""
        by_mask = by_token = None
        if self.some_hidden[i]:
            by_mask = here @ self.own_moves.get(i, self.automaton.any_move).T
        if not self.all_hidden[i]:
            by_token = here.gather(1, self.automaton.to[self.column[:, i]])
        return self.chosen(by_mask, by_token, i).clamp_(max=1.0)

    def chosen(self, by_mask: Tensor | None, by_token: Tensor | None, i: int) -> Float[Tensor, "b s"]:
        """Of each row what its move at position i is."""
        if by_mask is None or by_token is None:
            moved = by_token if by_mask is None else by_mask
            assert moved is not None
            return moved
        return torch.where(self.hidden[:, i, None], by_mask, by_token)

    def forward(self) -> Bool[Tensor, "b i s"]:
        """Whether a state is reachable before each position, and behind the last."""
        found = [self.start()]
        for i in range(self.column.shape[1]):
            found.append(self.onward(found[-1], i))
        return torch.stack(found, 1) > 0

    def backward(self) -> Bool[Tensor, "b i s"]:
        """Whether a state before each position, and behind the last, is hopeful."""
        found = [self.final.float().repeat(len(self.column), 1)]
        for i in reversed(range(self.column.shape[1])):
            found.append(self.back(found[-1], i))
        return torch.stack(found[::-1], 1) > 0

    def stuck(self) -> list[int | None]:
        """The first position of each row that no filling gets past; l if all are unfinished there; else None."""
        reached = self.forward()
        alive = reached[:, 1:, :-1].any(2)  # the last state is dead
        done = (reached[:, -1] & self.final).any(1)
        first = torch.where(alive.all(1), alive.shape[1], (~alive).long().argmax(1))
        return [None if ok else int(at) for ok, at in zip(done.tolist(), first.tolist(), strict=True)]

    def open(self, reached: Bool[Tensor, "n s"], hopeful: Bool[Tensor, "n s"]) -> Bool[Tensor, "n c"]:
        """Which classes lead from a reachable to a hopeful state."""
        table = self.automaton.table[:, :KEEP]
        portion = max(1, CELLS // table.numel())
        pairs = zip(reached.split(portion), hopeful.split(portion), strict=True)
        return torch.cat([(r[:, :, None] & h[:, table]).any(1) for r, h in pairs])

    @cached_property
    def some_hidden(self) -> list[bool]:
        return self.hidden.any(0).tolist()

    @cached_property
    def all_hidden(self) -> list[bool]:
        return self.hidden.all(0).tolist()


def chain_of(
    automaton: Automaton, canvas: Canvas, *, own_moves: Mapping[int, Float[Tensor, "s s"]], whole: bool
) -> Chain:
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
    if not whole:  # behind given text nothing is open
        final[[FIRST, INSIDE]] = True
    return Chain(automaton, column, canvas.hidden, own_moves, final)
