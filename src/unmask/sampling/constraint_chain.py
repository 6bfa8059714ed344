"""The chain of a canvas: which states of an automaton some filling reaches, and from which some filling matches."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
    any_move: Float[Tensor, "s s"]  # 1 where some token leads from one state to another
    own_moves: Mapping[int, Float[Tensor, "s s"]]  # at positions with a set of allowed tokens
    final: Bool[Tensor, " s"]  # where a row may end

    def forward(self) -> Bool[Tensor, "b i s"]:
        """Whether a state is reachable before each position, and behind the last."""
        table = self.automaton.table
        here = torch.zeros(len(self.column), len(table), device=table.device)
        here[:, FIRST] = 1.0
        found = [here]
        for i in range(self.column.shape[1]):
            hidden = self.hidden[:, i]
            by_mask = here @ self.own_moves.get(i, self.any_move) if bool(hidden.any()) else here
            by_token = here
            if not bool(hidden.all()):
                by_token = torch.zeros_like(here).scatter_add_(1, table.T[self.column[:, i]], here)
            here = torch.where(hidden[:, None], by_mask, by_token).clamp_(max=1.0)
            here[:, -1] = 0.0
            found.append(here)
        return torch.stack(found, 1) > 0

    def backward(self) -> Bool[Tensor, "b i s"]:
        """Whether a state before each position, and behind the last, is hopeful."""
        table = self.automaton.table
        here = self.final.float().repeat(len(self.column), 1)
        found = [here]
        for i in reversed(range(self.column.shape[1])):
            hidden = self.hidden[:, i]
            by_mask = here @ self.own_moves.get(i, self.any_move).T if bool(hidden.any()) else here
            by_token = here if bool(hidden.all()) else here.gather(1, table.T[self.column[:, i]])
            here = torch.where(hidden[:, None], by_mask, by_token).clamp_(max=1.0)
            found.append(here)
        return torch.stack(found[::-1], 1) > 0

    def stuck(self) -> list[int | None]:
        """The first position of each row that no filling gets past; l if all are unfinished there; else None."""
        reached = self.forward()
        alive = reached.any(2)[:, 1:]
        done = (reached[:, -1] & self.final).any(1)
        first = (~alive).long().argmax(1)
        length = self.column.shape[1]
        return [
            None if ok else (int(at) if not bool(living.all()) else length)
            for ok, at, living in zip(done.tolist(), first.tolist(), alive, strict=True)
        ]

    def open(self, row: Int[Tensor, " n"], position: Int[Tensor, " n"]) -> Bool[Tensor, "n c"]:
        """Which classes lead from a reachable to a hopeful state at these places."""
        reached, hopeful = self.forward()[row, position], self.backward()[row, position + 1]
        table = self.automaton.table[:, :KEEP]
        portion = max(1, CELLS // table.numel())
        return torch.cat(
            [
                (r[:, :, None] & h[:, table]).any(1)
                for r, h in zip(reached.split(portion), hopeful.split(portion), strict=True)
            ]
        )


def chain_of(automaton: Automaton, canvas: Canvas, *, allowed: Mapping[int, Collection[int]], whole: bool) -> Chain:
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
    own_moves = {
        place: moves(automaton, automaton.classes[torch.tensor(sorted(ids), dtype=torch.long)].unique())
        for place, ids in allowed.items()
    }
    return Chain(automaton, column, canvas.hidden, moves(automaton, automaton.classes.unique()), own_moves, final)


def moves(automaton: Automaton, classes: Int[Tensor, " k"]) -> Float[Tensor, "s s"]:
    """1 where a token of some class leads from one state to another."""
    table = automaton.table
    found = torch.zeros(len(table), len(table), device=table.device)
    found.scatter_(1, table[:, classes], 1.0)
    found[:, -1] = 0.0
    return found
