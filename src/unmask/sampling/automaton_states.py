"""Which states of a deterministic automaton can be told apart by what matches behind them. [Hopcroft 1971]"""

import numpy as np


def told_apart(table: np.ndarray, accepts: np.ndarray) -> np.ndarray:
    """The class of each state of a table (states, letters): two of one class match the same behind them."""
    _, kinds = np.unique(table, axis=1, return_index=True)  # bytes that lead to the same states count once
    sources = [sources_of(table[:, kind]) for kind in kinds]
    label = accepts.astype(np.int64).tolist()
    members = [set(np.flatnonzero(accepts == kind).tolist()) for kind in (False, True)]
    splitters = {0, 1}
    while splitters:
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
                # Splitting by the smaller half tells as much; both are needed where the whole was still to be used.
                splitters.add(new if kind in splitters or len(some) <= len(members[kind]) else kind)
    return np.array(label)


def sources_of(column: np.ndarray) -> list[list[int]]:
    """For each state, those that lead to it."""
    found: list[list[int]] = [[] for _ in column]
    for state, after in enumerate(column.tolist()):
        found[after].append(state)
    return found
