"""Every sampler that claims a law follows it: 200,000 draws against the enumerated law."""

import pytest
import torch

import exact
from unmask.diffusion.schedule import Cosine, LogLinear, Polynomial
from unmask.diffusion.times import grid
from unmask.sampling.loop import fill
from unmask.sampling.plan import Ancestral, FirstHitting
from unmask.text.canvas import blank, of_tokens

DRAWS = 200_000


def last(steps):
    *_, step = steps
    return step


def draws(world, policy, *, start=None, seed=0, rows=DRAWS, **options):
    canvas = blank(rows, world.length, mask=world.mask)
    if start is not None:
        canvas = of_tokens(start.repeat(rows, 1), mask=world.mask)
    return last(fill(world.network, canvas, policy, seed=seed, **options)).canvas.tokens


def test_first_hitting_is_the_mean_over_all_orders():
    world = exact.TableWorld.random()
    assert exact.chi_square_p(exact.law_of_random_order(world), draws(world, FirstHitting())) > 1e-3


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(eps=0), Polynomial(3)])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_planned_grid_has_the_law_of_the_literal_grid(schedule, steps):
    world = exact.TableWorld.random(1)
    hidden = schedule.at(grid(steps)).hidden
    law = exact.law_of_grid(world, (hidden / hidden[0]).tolist())
    assert exact.chi_square_p(law, draws(world, Ancestral(steps, schedule))) > 1e-3


@pytest.mark.parametrize("start", [[3, 1, 3], [0, 3, 3], [3, 3, 2]])
def test_infilling_follows_the_law_given_what_is_frozen(start):
    world = exact.TableWorld.random(2)
    start = torch.tensor(start)
    law = exact.law_of_random_order(world, start)
    assert exact.chi_square_p(law, draws(world, FirstHitting(), start=start)) > 1e-3


def test_a_chain_infilled_by_its_exact_denoiser_follows_the_conditional_law():
    world = exact.ChainWorld.random(0)
    joint = exact.law_of_chain(world)
    given = {text: p for text, p in joint.items() if text[1] == 2}
    law = {text: p / sum(given.values()) for text, p in given.items()}
    start = torch.tensor([world.mask, 2, world.mask, world.mask])
    assert exact.chi_square_p(law, draws(world, FirstHitting(), start=start)) > 1e-3
