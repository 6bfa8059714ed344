"""Together: the passes of many callers in one, or in as few as a network can take.

Attention networks take all of them as one pass. Products with weights are shared, and each part attends by its own
rule and memory: rows of one length are a part, so there is no padding. Other networks are given rows of similar
lengths as one pass with padding, and passes with a memory one after the other.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.model.backbone import Reader
from unmask.model.passing import Apart, Pass, Rule, States, every, join, split

APART = 32  # padded positions that cost a CPU as much as one more pass: 17 to 35 were measured for `stories`

Counted = Callable[[int, int], None]  # is given the positions of a pass, and how many of them are padding


def count_nothing(positions: int, padded: int) -> None:
    """Nobody counts."""


def run_together(network: Reader, passes: Sequence[Pass], counted: Counted = count_nothing) -> list[States]:
    if len(passes) == 1 and passes[0].lengths is None:
        counted(passes[0].x.shape[0] * passes[0].x.shape[1], 0)
        return [network.run(passes[0])]
    attends = Apart in network.spec.abilities.sees
    kinds: dict[object, list[int]] = {}
    for i, p in enumerate(passes):
        kinds.setdefault(kind_of(p) or i, []).append(i)
    gatherings = [Gathering([passes[i] for i in own], attends=attends) for own in kinds.values()]
    parts = [p for one in gatherings for p in one.passes]
    if attends and len(parts) > 1:
        joined = join(parts)
        states = split(joined, network.run(joined))
    else:
        states = [network.run(p) for p in parts]
    sizes = [p.x.shape[0] * p.x.shape[1] for p in parts]
    padded = [0 if p.lengths is None else size - int(p.lengths.sum()) for p, size in zip(parts, sizes, strict=True)]
    for numbers in [(sum(sizes), sum(padded))] if attends else zip(sizes, padded, strict=True):
        counted(*numbers)
    by_pass: dict[int, States] = {}
    for own, one in zip(kinds.values(), gatherings, strict=True):
        by_pass.update(zip(own, one.scatter(states[: len(one.passes)]), strict=True))
        states = states[len(one.passes) :]
    return [by_pass[i] for i in range(len(passes))]


def kind_of(p: Pass) -> object | None:
    """What passes must have in common to be rows of one batch; None: it is by itself."""
    itself = isinstance(p.sees, Rule) or any(one is not None for one in (p.memory, p.position, p.segments))
    return None if itself else (p.sees, p.x.is_floating_point(), p.sigma is None)


class Gathering:
    """Passes that can be rows of one batch, as one pass for each length, or for similar ones."""

    def __init__(self, members: Sequence[Pass], *, attends: bool) -> None:
        self.members, self.order = members, list[Tensor]()
        if len(members) == 1 and (members[0].lengths is None or kind_of(members[0]) is None):
            self.passes = list(members)
            return
        first, most, b = members[0], max(p.x.shape[1] for p in members), 0
        x, rows, lengths = [], [], []
        for p in members:
            own = p.x.shape[1]
            behind = [0, 0] * (p.x.dim() - 2)
            x.append(pad(p.x, [*behind, 0, most - own]))
            at = every(p)
            rows.append((b + at // own) * most + at % own)
            lengths.append(p.x.new_full((len(p.x),), own, dtype=torch.long) if p.lengths is None else p.lengths)
            b += len(p.x)
        reach, at, inputs = torch.cat(lengths), torch.cat(rows), torch.cat(x)
        sigma = None if first.sigma is None else torch.cat([p.sigma for p in members if p.sigma is not None])
        row, column, self.passes = at // most, at % most, []
        apart = 0 if attends else APART if reach.device.type == "cpu" else inputs.numel()
        for some in by_length(reach, apart=apart):
            ends = reach[some]
            wide = int(ends.max())
            place = torch.full_like(reach, -1).index_put((some,), torch.arange(len(some), device=some.device))
            self.order.append((place[row] >= 0).nonzero().squeeze(1))
            wanted = place[row[self.order[-1]]] * wide + column[self.order[-1]]
            level = None if sigma is None else sigma[some]
            full = bool((ends == wide).all())
            self.passes.append(
                Pass(inputs[some, :wide], first.sees, sigma=level, lengths=None if full else ends, wanted=wanted)
            )

    def scatter(self, states: Sequence[States]) -> list[States]:
        if not self.order:
            return list(states)
        hidden = torch.cat([one.hidden for one in states])
        hidden = hidden[torch.cat(self.order).argsort()] if len(states) > 1 else hidden
        each = zip(self.members, hidden.split([len(every(p)) for p in self.members]), strict=True)
        return [States(own if p.wanted is not None else own.unflatten(0, p.x.shape[:2])) for p, own in each]


def by_length(reach: Int[Tensor, " b"], *, apart: int) -> list[Int[Tensor, " k"]]:
    """The rows of each pass: those of similar lengths, if a further pass spares more than `apart` positions."""
    lengths = reach.tolist()
    left = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    groups: list[list[int]] = []
    for number, i in enumerate(left):
        if not groups or (lengths[groups[-1][0]] - lengths[i]) * (len(left) - number) > apart:
            groups.append([])
        groups[-1].append(i)
    return [torch.tensor(sorted(some), device=reach.device) for some in groups]
