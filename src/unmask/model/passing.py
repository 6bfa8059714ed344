"""Pass: everything that a network reads in one call, as a value. `Backbone.run` takes one and gives `States`.

Its elements are tokens or vectors, each with a position. Who sees whom is a value of the pass: the same weights read
forward, both ways, block by block or by any rule. A memory is written by position: keys and values, a recurrent state
or a segment of text, read in pieces, in blocks or in any order. `model/passes` has the functions that build passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UserError


@dataclass(frozen=True)
class Full:
    """Everybody sees everything, what is remembered included."""

    meaning: ClassVar[str] = "see both sides"


@dataclass(frozen=True)
class Causal:
    """An element sees what is remembered, the elements before it in the order of reading, and itself."""

    meaning: ClassVar[str] = "see only what is before them"


@dataclass(frozen=True)
class Blocks:
    """An element sees the blocks of `size` positions up to its own one."""

    size: int
    meaning: ClassVar[str] = "see the blocks up to their own one"


@dataclass(frozen=True)
class Within:
    """An element sees the positions at a distance of at most `n`, on both sides."""

    n: int
    meaning: ClassVar[str] = "see their neighbourhood"


@dataclass(frozen=True)
class VisibleKeys:
    """An element sees what is remembered, the elements whose token is not the mask, and itself."""

    mask: int
    meaning: ClassVar[str] = "see no masks but their own"


@dataclass(frozen=True, eq=False)
class Rule:
    """visible[.., i, j]: element i sees element j. With more columns, those of the memory by position come first.

    With one column per element the memory is seen by all.
    """

    visible: Bool[Tensor, "*b m keys"]
    meaning: ClassVar[str] = "see each other by a rule of the caller"


@dataclass(frozen=True, eq=False)
class Apart:
    """Several passes as one row: an element sees what its own pass says, and nothing of the other ones."""

    parts: tuple["Pass", ...]
    meaning: ClassVar[str] = "belong to several passes"


Sees = Full | Causal | Blocks | Within | VisibleKeys | Rule | Apart
ATTENTION: frozenset[type] = frozenset({Full, Causal, Blocks, Within, VisibleKeys, Rule, Apart})


@runtime_checkable
class Memory(Protocol):
    """What a network remembers of rows. Only the network, or its attention, knows the contents."""

    @property
    def filled(self) -> int:
        """Tokens of each row read so far."""

    def take(self, rows: Int[Tensor, " n"]) -> "Memory":
        """The memory of some of the rows."""


@dataclass(frozen=True)
class Empty:
    """The memory before anything is read: it asks the network to remember."""

    capacity: int = 0  # tokens for which there should be room at once; 0: grow as needed

    @property
    def filled(self) -> int:
        return 0

    def take(self, rows: Int[Tensor, " n"]) -> "Empty":
        return self


@dataclass(frozen=True, eq=False)
class Segment:
    """What training carries from step to step: a tensor with an entry for each row, or nothing yet."""

    states: Float[Tensor, "b ..."] | None = None
    filled: int = 0

    def take(self, rows: Int[Tensor, " n"]) -> "Segment":
        return Segment(None if self.states is None else self.states[rows], self.filled)


@dataclass(frozen=True)
class Memories:
    """The memories of passes that were joined."""

    parts: tuple[Memory | None, ...]

    @property
    def filled(self) -> int:
        return sum(part.filled for part in self.parts if part is not None)

    def take(self, rows: Int[Tensor, " n"]) -> "Memories":
        raise TypeError("take the rows of one of the joined passes")


@dataclass(frozen=True, eq=False)
class Pass:
    """What a network reads in one call."""

    x: Int[Tensor, "b m"] | Float[Tensor, "b m d"]  # tokens, or vectors in place of their embeddings
    sees: Sees = Full()
    position: Int[Tensor, "*b m"] | None = None  # of each element; None: one after the other, after the memory
    sigma: Float[Tensor, "..."] | None = None  # noise level per row (b) or element (b m), where the network takes it
    lengths: Int[Tensor, " b"] | None = None  # of the rows: elements at these positions and after are padding
    segments: Int[Tensor, "b m"] | None = None  # 0 for a first text, 1 for a second; ignored by networks without them
    memory: Memory | None = None  # of the text read before; None: there is none, and nothing is remembered
    keep: int | None = None  # how many elements, the first ones, are remembered; None: all
    wanted: Int[Tensor, " n"] | None = None  # flat elements over (b m) whose states are needed; None: all
    aim: Int[Tensor, "*b m"] | None = None  # the position from which each element looks at others; None: its own

    @property
    def start(self) -> int:
        """The position of the first element, where positions follow each other."""
        return 0 if self.memory is None else self.memory.filled

    @property
    def positions(self) -> Int[Tensor, "*b m"]:
        if self.position is not None:
            return self.position
        return torch.arange(self.start, self.start + self.x.shape[1], device=self.x.device)


@dataclass(frozen=True, eq=False)
class States:
    """What a network answers."""

    hidden: Float[Tensor, "..."]  # of all elements (b m d), or of the wanted ones (n d)
    memory: Memory | None = None  # with what was read, if the pass has one


def wanted_of(hidden: Float[Tensor, "b l d"], wanted: Int[Tensor, " n"] | None) -> Float[Tensor, "..."]:
    """The states of the wanted elements; None: of all."""
    return hidden if wanted is None else hidden.flatten(0, 1).index_select(0, wanted)


@dataclass(frozen=True)
class Abilities:
    """The passes that a network can run."""

    sees: frozenset[type] = frozenset({Full})
    memory: bool = False  # can remember what it read
    positions: bool = False  # elements can have any positions
    aims: bool = False  # and look at others from another position than their own
    carried: bool = False  # its memory also goes from training step to training step


def check(p: Pass, can: Abilities, name: str) -> None:
    """Refuse a pass that a network cannot run."""
    if type(p.sees) not in can.sees:
        known = "; ".join(sorted(vars(kind)["meaning"] for kind in can.sees if kind is not Apart))
        raise UserError(
            f"the backbone {name!r} cannot run a pass whose positions {p.sees.meaning}: its positions {known}."
        )
    if p.memory is not None and not (can.memory or can.carried):
        raise UserError(f"the backbone {name!r} has no memory: it cannot read token by token or block by block.")
    if (p.position is not None or p.keep is not None) and not can.positions:
        raise UserError(f"the backbone {name!r} reads positions in order, and remembers all of them or none.")
    if p.aim is not None and not can.aims:
        raise UserError(f"the backbone {name!r} has no positions that rotate: its tokens cannot look from elsewhere.")
    if p.memory is not None and p.lengths is not None:
        raise ValueError("rows of a pass with a memory have one length: join passes of rows that differ")


def join(passes: Sequence[Pass]) -> Pass:
    """All passes as one, for networks that can take them `Apart`. The states come in the order of the passes."""
    if len(passes) == 1:
        return passes[0]
    starts = [0]
    for p in passes:
        starts.append(starts[-1] + p.x.shape[0] * p.x.shape[1])
    wanted = [every(p) + start for p, start in zip(passes, starts, strict=False)]
    sigma = None
    if all(p.sigma is not None for p in passes):
        sigma = torch.cat([p.sigma.float() for p in passes if p.sigma is not None])  # per row
    return Pass(
        torch.cat([p.x.flatten(0, 1) for p in passes])[None],
        Apart(tuple(passes)),
        torch.cat([flat_places(p, p.positions) for p in passes]),
        sigma,
        memory=Memories(tuple(p.memory for p in passes)) if any(p.memory is not None for p in passes) else None,
        wanted=torch.cat(wanted),
        aim=None
        if all(p.aim is None for p in passes)
        else torch.cat([flat_places(p, p.positions if p.aim is None else p.aim) for p in passes]),
    )


def stack(passes: Sequence[Pass]) -> Pass | None:
    """Passes of a row each as rows of one, without a memory; None: they differ in more than what they read.

    Rules of the caller may differ from row to row, if they are of one shape.
    """
    m, first = passes[0].x.shape[1], passes[0]
    shapes = {
        (p.x.shape, p.keep, *(None if one is None else one.shape for one in (p.position, p.aim))) for p in passes
    }
    rules = [p.sees.visible for p in passes if isinstance(p.sees, Rule)]
    kinds = {rule.shape for rule in rules} | {p.sees for p in passes if not isinstance(p.sees, Rule)}
    if len(shapes) > 1 or len(kinds) > 1 or not all(p.sigma is p.lengths is p.segments is None for p in passes):
        return None
    return Pass(
        torch.cat([p.x for p in passes]),
        Rule(torch.stack(rules)) if rules else first.sees,
        stacked([p.position for p in passes]),
        keep=first.keep,
        wanted=torch.cat([every(p) + i * m for i, p in enumerate(passes)]),
        aim=stacked([p.aim for p in passes]),
    )


def stacked(places: Sequence[Int[Tensor, " m"] | None]) -> Int[Tensor, "b m"] | None:
    there = [one for one in places if one is not None]
    return torch.stack(there) if there else None


def flat_places(p: Pass, places: Int[Tensor, "*b m"]) -> Int[Tensor, " n"]:
    """A place of each element, where rows may share them."""
    return places if places.dim() == 1 and len(p.x) == 1 else places.expand(p.x.shape[:2]).flatten()


def every(p: Pass) -> Int[Tensor, " n"]:
    """The flat elements whose states are wanted."""
    if p.wanted is not None:
        return p.wanted
    return torch.arange(p.x.shape[0] * p.x.shape[1], device=p.x.device)


def split(p: Pass, states: States) -> list[States]:
    """The states of each of the passes that were joined."""
    if not isinstance(p.sees, Apart):
        return [states]
    parts = p.sees.parts
    hidden = states.hidden.split([len(every(part)) for part in parts])
    memories = states.memory.parts if isinstance(states.memory, Memories) else (None,) * len(parts)
    parts_states = []
    for part, own, memory in zip(parts, hidden, memories, strict=True):
        parts_states.append(States(own if part.wanted is not None else own.unflatten(0, part.x.shape[:2]), memory))
    return parts_states
