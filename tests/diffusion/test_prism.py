"""PRISM: quality is the enumerated posterior; the bound is MDLM's; the sampler hides what is wrong."""

from collections import defaultdict
from itertools import permutations, product

import pytest
import torch

from contracts.members import LETTERS, model_of, network_of, spec_of
from exact import ChainWorld
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.prism import LearnedQuality
from unmask.diffusion.times import Count
from unmask.errors import UserError
from unmask.model.denoiser import Denoiser
from unmask.random import Noise, keys
from unmask.sampling.masked import Masked
from unmask.sampling.policies.prism import Prism
from unmask.sampling.process import run
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import blank
from unmask.training import noise

LENGTH, STATES = 2, 9  # two letters and the mask


def state_of(y):
    return y[..., 0] * 3 + y[..., 1]


class World:
    """An exact denoiser of a chain of two letters, with a table of qualities in the logit of the mask."""

    def __init__(self, skew: float = 0.0):
        self.chain = ChainWorld.random(5, letters=2, length=LENGTH)
        self.table = torch.zeros(STATES, LENGTH, dtype=torch.double, requires_grad=True)
        self.skew = skew  # added to the logit of the first letter: a network that is often wrong

    def __call__(self, x_t, sigma, rows):
        logits = self.chain.network(x_t, sigma, rows).double()[:, :2]
        logits = torch.cat([logits[:, :1] + self.skew, logits[:, 1:]], 1)
        return torch.cat([logits, self.table[state_of(x_t)[rows // LENGTH], rows % LENGTH][:, None]], 1)


def posterior(world):
    """P(the token at i is right | y) by enumeration: texts, orders, numbers of masks, of guesses, and guesses."""
    right, all_of_them = defaultdict(float), defaultdict(float)
    for text in product(range(2), repeat=LENGTH):
        x0 = torch.tensor([text])
        p_text = float((-world.chain.nll(x0)).exp())
        for order, k in product(permutations(range(LENGTH)), range(1, LENGTH + 1)):
            masked = order[:k]  # the first of them is revealed first
            x_t = x0.clone()
            x_t[0, list(masked)] = 2
            logits = world(x_t, torch.zeros(1), torch.arange(LENGTH)).detach()[:, :2].softmax(-1)
            for n in range(1, k + 1):
                for guess in product(range(2), repeat=n):
                    y, p = x_t.clone(), p_text / 2 / LENGTH / k
                    for place, token in zip(masked[:n], guess, strict=True):
                        y[0, place] = token
                        p *= float(logits[place, token])
                    for place, token in zip(masked[:n], guess, strict=True):
                        key = int(state_of(y)[0]), place
                        all_of_them[key] += p
                        right[key] += p * (token == text[place])
    return {key: right[key] / total for key, total in all_of_them.items()}


@pytest.mark.slow
def test_quality_is_the_posterior_probability_that_a_token_is_right():
    world = World(skew=1.0)
    truth = posterior(world)
    generator, many = torch.Generator().manual_seed(0), 6000
    texts = torch.tensor(list(product(range(2), repeat=LENGTH)))
    chances = (-world.chain.nll(texts)).exp()
    optimizer = torch.optim.Adam([world.table], lr=0.1)
    for step in range(120):
        x0 = texts[torch.multinomial(chances, many, replacement=True, generator=generator)]
        drawn = Noise(torch.rand(many, generator=generator), torch.rand(many, LENGTH, generator=generator))
        drawn = Noise(drawn.t, drawn.u, keys(step, torch.arange(many)))
        loss = LearnedQuality().nats(world, CleanRows(x0, drawn, mask=2)).loss
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.98
    found = world.table.detach().sigmoid()
    assert len(truth) == 12  # both tokens known, or one of them
    assert max(abs(float(found[state, place]) - p) for (state, place), p in truth.items()) < 0.03
    assert max(truth.values()) - min(truth.values()) > 0.2


def test_the_bound_is_that_of_mdlm_and_quality_is_a_part_of_the_loss():
    network = network_of(spec_of("transformer"), scale=0.2)
    rows, drawn = torch.randint(LETTERS.size - 3, (5, 12)), noise.draw(5, 12, seed=1, step=0)
    told, _ = Denoiser(network, MDLM(times=Count(), weight="flat"))(rows, drawn, mask=LETTERS.mask)
    plain, _ = Denoiser(network, LearnedQuality(quality=0.0))(rows, drawn, mask=LETTERS.mask)
    found, _ = Denoiser(network, LearnedQuality())(rows, drawn, mask=LETTERS.mask)
    torch.testing.assert_close(plain.loss, told.loss)
    torch.testing.assert_close(found.bound, told.bound)
    assert bool((found.loss >= plain.loss).all())
    assert bool((found.loss > plain.loss).any(1).all()), "some token of every row is drawn"
    with pytest.raises(UserError, match="quality"):
        LearnedQuality(quality=-1.0)


class Judge:
    """A network that takes the letter 0 for wrong."""

    def __call__(self, x_t, sigma, rows):
        wrong = x_t.flatten()[rows] == 0
        return torch.stack([torch.zeros(len(rows)), torch.zeros(len(rows)), torch.where(wrong, -9.0, 9.0)], 1)


def test_the_sampler_hides_what_the_network_takes_for_wrong_and_takes_its_calls():
    shares = []
    for tau in (0.0, 0.5):
        steps = list(run(Masked(Prism(steps=30, tau=tau, most=1.0)), Judge(), blank(50, 10, mask=2), seed=1))
        assert len(steps) <= 30
        assert not bool(steps[-1].canvas.hidden.any())
        shares.append(float((steps[-1].canvas.tokens == 0).float().mean()))
    assert shares[0] > 0.4 > 0.15 > shares[1]


def test_models_without_quality_refuse_the_sampler(tmp_path):
    model = model_of(tmp_path / "m", "prism")
    assert "hidden again" in method_for(model, Recipe(sampler="prism", steps=4)).law
    with pytest.raises(UserError, match="needs quality"):
        method_for(model_of(tmp_path / "o", "mdlm"), Recipe(sampler="prism"))
