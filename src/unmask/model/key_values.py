"""Key-value memory of attention networks, written by position.

A slot is a position. Text that is read in order fills the slots from the left: keys are then slices, without copies.
Elements that are seen in a pass and not remembered (`Pass.keep`) are written after the text, and the next pass writes
over them. Text that is read in any other order leaves gaps, or is written again in its place (a stale cache that is
refreshed); `known` then says which slots count. A memory that a pass writes over is changed for all who hold it.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Pair = tuple[Float[Tensor, "b room h e"], Float[Tensor, "b room h e"]]


@dataclass(frozen=True, eq=False)
class KeyValues:
    """Keys, as attention uses them, and values of the positions read so far, in every layer."""

    capacity: int = 0  # slots to allocate at first
    low: int = 0  # position of the first one that is still seen
    start: int = 0  # position of the first slot
    end: int = 0  # the position after the last one that is known
    known: Bool[Tensor, "b slots"] | None = None  # slots start .. end that count; None: all of them
    layers: dict[int, Pair] = field(default_factory=dict)

    @property
    def filled(self) -> int:
        """Tokens of each row read so far."""
        return self.end if self.known is None else self.start + int(self.known[0].sum())

    @property
    def room(self) -> int:
        return self.layers[0][0].shape[1] if self.layers else 0

    def take(self, rows: Int[Tensor, " n"]) -> "KeyValues":
        known = None if self.known is None else self.known[rows]
        return replace(self, known=known, layers={i: (k[rows], v[rows]) for i, (k, v) in self.layers.items()})

    def since(self, position: int) -> "KeyValues":
        """Without what is before a position. Its slots are freed when more of them are needed."""
        low = max(self.low, min(position, self.end))
        return self if low == self.low else replace(self, low=low)

    def until(self, position: int) -> "KeyValues":
        """Without what is at a position and after it, of text that was read in order. The next pass writes there."""
        return replace(self, end=min(self.end, position))

    @property
    def seen(self) -> Bool[Tensor, "b slots"] | None:
        """Which of the slots low .. end count; None: all."""
        return None if self.known is None else self.known[:, self.low - self.start :]


@dataclass(frozen=True, eq=False)
class Writing:
    """The keys and values of a pass being added to a memory."""

    before: KeyValues
    size: int  # elements of the pass
    keep: int  # how many of them are remembered, the first ones
    slots: Int[Tensor, "*b keep"] | None  # where these are written; None: after the text, in order
    end: int  # the position after the last one that is known then
    grows: bool = field(init=False)  # new tensors are needed: those of the memory have no room left
    start: int = field(init=False)  # position of the first slot then: what is not seen goes where tensors are new
    layers: dict[int, Pair] = field(default_factory=dict)

    def __post_init__(self) -> None:
        grows = self.before.room < self.end - self.before.start + self.size - self.keep
        object.__setattr__(self, "grows", grows)
        object.__setattr__(self, "start", self.before.low if grows else self.before.start)

    @property
    def columns(self) -> int:
        """Slots of positions among the keys; elements that are not remembered come after them."""
        return (self.before.end if self.slots is None else self.end) - self.before.low

    def add(self, layer: int, k: Float[Tensor, "b m h e"], v: Float[Tensor, "b m h e"]) -> Pair:
        """The keys and values that the elements may see in a layer, new ones included."""
        keys, values = self.layers[layer] = self.roomy(layer, k, v) if self.grows else self.before.layers[layer]
        first, after = self.before.low - self.start, self.end - self.start
        stop = after + self.size - self.keep
        if self.slots is None:
            keys.narrow(1, after - self.keep, self.size).copy_(k)
            values.narrow(1, after - self.keep, self.size).copy_(v)
        else:
            row = torch.arange(len(k), device=k.device)[:, None]
            for into, new in ((keys, k), (values, v)):
                into[row, self.slots - self.start] = new[:, : self.keep]
                into[:, after:stop] = new[:, self.keep :]
        return keys.narrow(1, first, stop - first), values.narrow(1, first, stop - first)

    def roomy(self, layer: int, k: Tensor, v: Tensor) -> Pair:
        """New tensors to write to, with twice the room and what is still seen."""
        old = self.before
        needed = self.end - old.low + self.size - self.keep
        room = max(needed, old.capacity) if not old.layers else 2 * needed
        pair = (k.new_zeros(len(k), room, *k.shape[2:]), v.new_zeros(len(v), room, *v.shape[2:]))  # gaps are finite
        if old.end > old.low:
            for new, old_tensor in zip(pair, old.layers[layer], strict=True):
                new[:, : old.end - old.low] = old_tensor[:, old.low - old.start : old.end - old.start]
        return pair

    @property
    def after(self) -> KeyValues:
        """The memory after all layers."""
        old = self.before
        known = self.known_slots(len(self.layers[0][0]) if self.layers else 1)
        return KeyValues(old.capacity, old.low, self.start, self.end, known, dict(self.layers))

    def known_slots(self, rows: int) -> Bool[Tensor, "b slots"] | None:
        if self.slots is None and self.before.known is None:
            return None
        old, low, start = self.before, self.before.low, self.start
        device = None if not self.layers else self.layers[0][0].device
        known = torch.zeros(rows, self.end - start, dtype=torch.bool, device=device)
        if old.end > low:
            known[:, low - start : old.end - start] = True if old.seen is None else old.seen
        if self.slots is None:
            known[:, self.end - self.keep - start :] = True
        else:
            known[torch.arange(rows, device=device)[:, None], self.slots - start] = True
        return None if bool(known[:, low - start :].all()) else known
