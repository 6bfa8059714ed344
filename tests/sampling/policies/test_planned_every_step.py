"""The sampler without savings: the texts of `ancestral`, with a forward pass in every step."""

import pytest
import torch

import exact
from sampling.laws import last
from unmask.diffusion.schedule import Cosine, LogLinear
from unmask.diffusion.times import grid
from unmask.sampling.masked import Sliding, fill
from unmask.sampling.policies.planned import Ancestral, EveryStep
from unmask.text.prompt.canvas import blank, of_tokens


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(eps=0)])
@pytest.mark.parametrize("windows", [None, Sliding(2, 1)])
def test_the_texts_are_those_of_the_sampler_that_saves_passes(schedule, windows):
    world = exact.TableWorld.random(1)
    start = torch.full((40, 3), world.mask)
    start[::3, 1] = 2  # given
    canvas = of_tokens(start, mask=world.mask)

    def network(x, sigma, rows):
        return x.float().mean(1, keepdim=True)[rows // x.shape[1]] * torch.arange(4.0)

    saved = last(fill(network, canvas, Ancestral(9, schedule), seed=3, windows=windows))
    every = last(fill(network, canvas, EveryStep(9, schedule), seed=3, windows=windows))
    assert torch.equal(saved.canvas.tokens, every.canvas.tokens)


def test_every_step_is_a_forward_pass_with_its_own_noise_level_until_the_text_is_there():
    seen = []

    def network(x, sigma, rows):
        seen.append((len(x), sigma.tolist(), int((x == 3).sum())))
        return torch.zeros(len(rows), 4)

    schedule = LogLinear(eps=0.01)
    saved = list(fill(network, blank(1, 4, mask=3), Ancestral(50, schedule), seed=5))
    assert len(saved) <= 4
    seen.clear()
    steps = list(fill(network, blank(1, 4, mask=3), EveryStep(50, schedule), seed=5))
    assert len(steps) == len(seen) > 4 * len(saved)
    told = schedule.at(grid(50)).sigma.float()
    assert [sigma for _, [sigma], _ in seen] == told[: len(seen)].tolist()
    assert sum(len(step.tokens) == 0 for step in steps) == len(steps) - len(saved)
