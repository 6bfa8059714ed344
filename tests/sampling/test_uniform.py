"""Uniform diffusion: the exact law of its steps, given text that stays, and what it refuses."""

import pytest
import torch

from contracts.members import LETTERS, model_of
from diffusion.test_d3pm_uniform import Pairs, enumerated
from exact import chi_square_p, every_text
from sampling.laws import last
from unmask.diffusion.kernels.uniform import Uniform
from unmask.diffusion.schedule import LogLinear
from unmask.errors import UserError
from unmask.sampling.policies.uniform import UniformSteps
from unmask.sampling.process import run
from unmask.sampling.recipe import Recipe, method_for
from unmask.sampling.uniform import UniformProcess
from unmask.text.prompt.canvas import blank, of_tokens


@pytest.mark.parametrize("steps", [1, 4])
def test_samples_follow_the_enumerated_law(steps):
    world = Pairs(1)
    _, law = enumerated(world, steps)
    process = UniformProcess(Uniform(LogLinear(eps=0), 3), UniformSteps(steps))
    end = last(run(process, world.network, blank(20_000, 2, mask=2), seed=3)).canvas.tokens
    told = {tuple(x.tolist()): float(p) for x, p in zip(every_text(2, 2), law, strict=True)}
    assert chi_square_p(told, end) > 1e-4


@pytest.mark.slow
def test_given_text_stays_windows_follow_each_other_and_a_pattern_is_refused(tmp_path):
    model = model_of(tmp_path / "m", "d3pm-uniform")
    method = method_for(model, Recipe(steps=4, window=6, stride=3))
    tokens = torch.tensor([[1, 2, *[LETTERS.mask] * 9]])
    steps = list(method.fill(of_tokens(tokens, mask=LETTERS.mask), seed=0, ids=torch.arange(1)))
    assert len(steps) == 4 * 3
    assert steps[-1].canvas.tokens[0, :2].tolist() == [1, 2]
    assert (steps[-1].canvas.tokens != LETTERS.mask).all()
    assert method.law.startswith("grid-4")
    with pytest.raises(UserError, match="--reject"):
        method_for(model, Recipe().changed(pattern="a+"))
    greedy = method_for(model, Recipe(sampler="d3pm-uniform:last=argmax", steps=4))
    assert "argmax" in greedy.law
