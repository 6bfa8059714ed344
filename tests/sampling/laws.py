"""Exact laws of samplers on enumerable worlds: every path from all masks, with its chance."""

from collections.abc import Callable, Iterable
from itertools import combinations, count, product

import torch
from torch import Tensor

from exact import DOUBLE, log_p_hidden
from unmask.diffusion.certainty import TIE
from unmask.sampling.masked import fill
from unmask.text.prompt.canvas import blank, of_tokens

State = tuple[int, ...]
Law = dict[State, float]
DRAWS = 50_000  # enough to tell a grid of 32 steps from its limit


def last(steps):
    *_, step = steps
    return step


def draws(world, policy, *, start=None, length=None, seed=0, rows=DRAWS, **options) -> Tensor:
    """Finished rows of one long batch."""
    canvas = blank(rows, length or world.length, mask=world.mask)
    if start is not None:
        canvas = of_tokens(start.repeat(rows, 1), mask=world.mask)
    return last(fill(world.network, canvas, policy, seed=seed, **options)).canvas.tokens


def law_of(world, move: Callable[[State, int], Iterable[tuple[State, float]]]) -> Law:
    """The law of a sampler: `move` gives what may follow a state that still has masks, at call 0, 1, 2, ..."""
    law: Law = {(world.mask,) * world.length: 1.0}
    for call in count():
        if not any(world.mask in state for state in law):
            return law
        after: Law = {}
        for state, chance in law.items():
            for new, p in [(state, 1.0)] if world.mask not in state else move(state, call):
                after[new] = after.get(new, 0.0) + chance * p
        law = after
    raise AssertionError


def hidden(world, state: State) -> list[int]:
    return [i for i, token in enumerate(state) if token == world.mask]


def filled(world, state: State, where: Iterable[int]) -> Iterable[tuple[State, float]]:
    """Tokens drawn independently at some positions, given the state."""
    where = list(where)
    probs = [log_p_hidden(world, torch.tensor(state), i).exp().tolist() for i in where]
    for letters in product(range(world.letters), repeat=len(where)):
        new, p = list(state), 1.0
        for i, letter, q in zip(where, letters, probs, strict=True):
            new[i], p = letter, p * q[letter]
        yield tuple(new), p


def groups(world, sizes: list[int]):
    """Random sets of given sizes."""

    def move(state, call):
        sets = list(combinations(hidden(world, state), sizes[call]))
        for chosen in sets:
            for new, p in filled(world, state, chosen):
                yield new, p / len(sets)

    return move


def winner(scores: dict[int, float]) -> int:
    """The position with the best score, the leftmost of those that tie."""
    rough = {i: round(score / TIE) for i, score in sorted(scores.items())}
    return max(rough, key=lambda i: rough[i])


def ordered(world, score):
    """The position with the best score of its distribution."""

    def move(state, call):
        scores = {i: score(log_p_hidden(world, torch.tensor(state), i)) for i in hidden(world, state)}
        return filled(world, state, [winner(scores)])

    return move


def drawn_then_kept(world):
    """Draw everywhere, keep the token that has the greatest probability."""

    def move(state, call):
        where = hidden(world, state)
        log_p = {i: log_p_hidden(world, torch.tensor(state), i) for i in where}
        for new, p in filled(world, state, where):
            kept = winner({i: float(log_p[i][new[i]]) for i in where})
            yield (*state[:kept], new[kept], *state[kept + 1 :]), p

    return move


def independently(world, chance: Callable[[Tensor, int], float], steps: int):
    """Each hidden position is revealed with its own chance, made of its raw logits; after `steps` calls all are."""

    def move(state, call):
        where = hidden(world, state)
        if call >= steps:
            yield from filled(world, state, where)
            return
        logits = world.network(torch.tensor([state]), torch.zeros(1, dtype=DOUBLE), torch.tensor(where))
        reveal = [chance(row, call) for row in logits]
        for picks in product([False, True], repeat=len(where)):
            q = 1.0
            for r, pick in zip(reveal, picks, strict=True):
                q *= r if pick else 1 - r
            if q > 0:
                for new, p in filled(world, state, [i for i, pick in zip(where, picks, strict=True) if pick]):
                    yield new, p * q

    return move
