"""Constraint: what may stand on a canvas. Tokens that would leave no way to a match are never drawn.

A canvas is read as a chain: a visible token is one move of the automaton, a mask is any move. A state is reachable at
a position if some filling of the masks before it leads there; it is hopeful if some filling of the masks behind it
leads from there to a match. A token may be drawn where it leads from a reachable to a hopeful state. Then a filling
that matches always exists, so no draw runs into a dead end.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.sampling.automaton import Automaton, over_tokens
from unmask.sampling.automaton_bytes import LARGEST, machine_of
from unmask.sampling.automaton_words import Words
from unmask.sampling.constraint_chain import Chain, chain_of
from unmask.text.canvas import Canvas


@dataclass(frozen=True, eq=False)
class Constraint:
    """A pattern for what is drawn, or for the whole text; and sets of allowed tokens by position."""

    automaton: Automaton
    allowed: Mapping[int, Collection[int]] = field(default_factory=dict)  # position -> the ids that may stand there
    whole: bool = False  # the pattern is for the whole text; False: for each stretch that is drawn, by itself
    about: str = "the allowed tokens"  # how errors call it

    def __post_init__(self) -> None:
        for position, ids in self.allowed.items():
            wrong = [id for id in ids if not 0 <= id < self.automaton.size]
            if position < 0 or wrong:
                raise UserError(
                    f"allowed tokens are ids in 0..{self.automaton.size - 1} at positions from 0 on; "
                    f"saw {wrong[0] if wrong else 'some'} at position {position}."
                )

    def chain(self, canvas: Canvas) -> Chain:
        return chain_of(self.automaton, canvas, own_moves=self.own_moves, whole=self.whole)

    @cached_property
    def own_moves(self) -> dict[int, Float[Tensor, "s s"]]:
        """The moves of a mask at the positions with a set of allowed tokens."""
        classes = self.automaton.classes
        return {
            place: self.automaton.moves(classes[torch.tensor(sorted(ids), dtype=torch.long, device=classes.device)])
            for place, ids in self.allowed.items()
        }

    def uses(self, token: int) -> bool:
        """Whether a token may be part of some match."""
        automaton, dead = self.automaton, len(self.automaton.table) - 1
        return token < automaton.size and bool((automaton.table[:, automaton.classes[token]] != dead).any())

    def on(self, device: torch.device) -> "Constraint":
        """The same on another device."""
        old = self.automaton
        new = Automaton(old.classes.to(device), old.table.to(device), old.accepts.to(device), old.silent)
        return replace(self, automaton=new)

    def check(self, canvas: Canvas) -> None:
        """Refuse a canvas that no filling makes match, before any network call."""
        length = canvas.tokens.shape[1]
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
        """Which rows match; of those with masks, which can be filled to match."""
        return torch.tensor([at is None for at in self.chain(canvas).stuck()], device=canvas.tokens.device)

    def pruned(
        self, canvas: Canvas, row: Int[Tensor, " n"], position: Int[Tensor, " n"], logits: Float[Tensor, "n v"]
    ) -> Float[Tensor, "n v"]:
        """Logits −∞ for tokens that leave no way to a match, at these hidden places of the canvas."""
        rows, index = row.unique(return_inverse=True)
        chain = self.chain(Canvas(canvas.tokens[rows], canvas.frozen[rows], canvas.mask))
        reached, hopeful = chain.forward(), chain.backward()
        return self.left(chain.open(reached[index, position], hopeful[index, position + 1]), position, logits)

    def left(
        self, ways: Bool[Tensor, "n c"], position: Int[Tensor, " n"], logits: Float[Tensor, "n v"]
    ) -> Float[Tensor, "n v"]:
        """Logits of the tokens whose class is open, and which may stand at these positions."""
        keep = ways[:, self.automaton.classes]
        for place in self.allowed.keys() & set(position.tolist()):
            ids = torch.tensor(sorted(self.allowed[place]), dtype=torch.long, device=keep.device)
            keep[position == place] &= torch.zeros_like(keep[0]).index_fill(0, ids, True)
        # A network may have more ids than there are tokens: they stand for no text.
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

        `draw(which, logits)` draws for some of the n places. The network is not asked again in between. One sweep
        does it: what is hopeful behind a place does not depend on the tokens before it.
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
                ways = chain.open(here[mine] > 0, hopeful[mine, place + 1])
                result[which] = draw(which, self.left(ways, position[which], logits[which]))
                to = self.automaton.to[self.automaton.classes[result[which]]]
                onward[mine] = torch.zeros_like(onward[mine]).scatter_add_(1, to, here[mine]).clamp_(max=1.0)
            here = onward
        return result


def matching(
    pattern: str, words: Words, *, whole: bool = False, ends: bool = True, largest: int = LARGEST
) -> Constraint:
    """Text that matches a regular expression. `ends`: shorter text is followed by eos and padding."""
    automaton = over_tokens(machine_of(pattern, largest=largest), words, ends=ends)
    return Constraint(automaton, whole=whole, about=f"the pattern {short(pattern)!r}")


def one_of(
    texts: Sequence[str], words: Words, *, whole: bool = False, ends: bool = True, largest: int = LARGEST
) -> Constraint:
    """One of some texts."""
    if not texts:
        raise UserError("a list of texts to choose from needs at least one text.")
    pattern = "|".join(re.escape(text) for text in texts)
    automaton = over_tokens(machine_of(pattern, largest=largest), words, ends=ends)
    return Constraint(automaton, whole=whole, about=f"one of the {len(texts)} texts {short(', '.join(texts))!r}")


def short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
