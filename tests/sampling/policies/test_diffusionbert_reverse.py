"""DiffusionBERT's sampler draws where and which together: the exact law of its steps, by enumeration."""

from itertools import product

import pytest
import torch

import exact
from diffusion.test_diffusionbert import counted
from sampling.laws import draws
from unmask.diffusion.kernels.spindle import Spindle
from unmask.sampling.policies.diffusionbert import SpindleReverse


def law_of(world, steps: int, f: torch.Tensor) -> dict[tuple[int, ...], float]:
    """p(x_s = v | m) = p_v r_v, p(m | m) = Σ_v p_v (1 − r_v), each position by itself given the state."""
    law = {(world.mask,) * world.length: 1.0}
    for step in range(steps):
        t, s = (torch.tensor([1 - (step + i) / steps], dtype=exact.DOUBLE) for i in (0, 1))
        r = Spindle(0.3, f).reveals(s, t, vocab=len(f))[0, : world.letters]
        after: dict[tuple[int, ...], float] = {}
        for state, chance in law.items():
            options = []
            for i, token in enumerate(state):
                p = exact.log_p_hidden(world, torch.tensor(state), i).exp()
                shown = list(enumerate((p * r).tolist()))
                stays = (world.mask, float((p * (1 - r)).sum()))
                options.append([*shown, stays] if token == world.mask else [(token, 1.0)])
            for choice in product(*options):
                p = chance
                for _, q in choice:
                    p *= q
                key = tuple(token for token, _ in choice)
                after[key] = after.get(key, 0.0) + p
        law = after
    return {key: p for key, p in law.items() if p > 1e-12}


@pytest.mark.slow
def test_samples_follow_the_enumerated_law_and_another_one_without_frequencies():
    world, f = exact.TableWorld.random(4), counted(50, 5, 1, 0).centred
    told, alike = law_of(world, 3, f), law_of(world, 3, torch.zeros(4, dtype=exact.DOUBLE))
    assert sum(told.values()) == pytest.approx(1)
    assert exact.total_variation(told, alike) > 0.01
    found = draws(world, SpindleReverse(steps=3, kernel=Spindle(0.3, f)), rows=40_000)
    assert exact.chi_square_p(told, found) > 1e-4
    assert exact.chi_square_p(alike, draws(world, SpindleReverse(steps=3), rows=40_000)) > 1e-4
