"""Every sampler that claims a law follows it: many draws against the enumerated law."""

import itertools
import math

import pytest
import torch

import exact
from reference import samplers as literal
from sampling import laws
from sampling.laws import DRAWS, draws, last, law_of
from unmask.diffusion.schedule import Cosine, LinearSigma, LogLinear, Polynomial, complete
from unmask.diffusion.times import grid
from unmask.model.backbones.mamba import MambaSpec
from unmask.model.passing import Empty, States
from unmask.sampling.autoregressive import continue_text
from unmask.sampling.masked import BlockWindows, Sliding, fill
from unmask.sampling.policies.confidence import Leftmost, Ordered
from unmask.sampling.policies.parallel import EntropyBound, Threshold
from unmask.sampling.policies.planned import Ancestral, FirstHitting, Groups
from unmask.sampling.policies.reverse import Analytic, D3PMReverse
from unmask.text.prompt.canvas import blank, of_prompt

ENOUGH = 1e-3

pytestmark = pytest.mark.slow


def test_first_hitting_is_the_mean_over_all_orders():
    world = exact.TableWorld.random()
    assert exact.chi_square_p(exact.law_of_random_order(world), draws(world, FirstHitting())) > ENOUGH


def test_first_hitting_is_told_apart_from_a_coarse_grid():
    world = exact.TableWorld.random()
    assert exact.chi_square_p(exact.law_of_random_order(world), draws(world, Ancestral(8))) < 1e-6


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(eps=0), Polynomial(3), LinearSigma(low=0.5, high=3)])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_planned_grid_has_the_law_of_the_grid(schedule, steps):
    world = exact.TableWorld.random(1)
    law = exact.law_of_grid(world, complete(schedule, grid(steps)).hidden.tolist())
    assert exact.chi_square_p(law, draws(world, Ancestral(steps, schedule))) > ENOUGH


@pytest.mark.parametrize("sampler", [literal.ancestral, literal.cached])
def test_the_literal_grid_has_the_same_law(sampler):
    # The time-agnostic worlds have few, likely tokens: what the float32 race loses is far below what can be seen.
    world, generator = exact.TableWorld.random(1), torch.Generator().manual_seed(0)
    noise = (torch.rand(DRAWS, 3, 4, generator=generator) for _ in range(5))
    x = torch.full((DRAWS, 3), world.mask)
    *_, result = sampler(world.network, x, steps=5, mask=world.mask, uniforms=noise)
    assert exact.chi_square_p(exact.law_of_grid(world, [1, 0.8, 0.6, 0.4, 0.2, 0]), result) > ENOUGH


def test_the_distance_between_grid_and_first_hitting_falls_like_one_over_the_steps():
    world = exact.TableWorld.random()
    true = exact.law_of_random_order(world)
    steps = [8, 16, 32, 64]
    distance = [exact.total_variation(true, exact.law_of_grid(world, grid(n).tolist())) for n in steps]
    slopes = [math.log2(b / a) for a, b in itertools.pairwise(distance)]
    assert all(-1.1 < slope < -0.9 for slope in slopes)
    finest = {}
    for text in draws(world, Ancestral(64), rows=4 * DRAWS).tolist():
        finest[tuple(text)] = finest.get(tuple(text), 0) + 1 / (4 * DRAWS)
    assert exact.total_variation(true, finest) < distance[-1] + 0.01


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (3,), (1, 1, 1)])
def test_planned_groups_follow_the_law_of_random_groups(sizes):
    world = exact.TableWorld.random(3)
    law = law_of(world, laws.groups(world, list(sizes)))
    assert exact.chi_square_p(law, draws(world, Groups(sizes=sizes))) > ENOUGH


def test_growing_groups_are_nearer_to_the_language_than_shrinking_ones():
    world = exact.ChainWorld.random(0)
    language = exact.law_of_chain(world)
    growing, shrinking = (
        exact.divergence(language, law_of(world, laws.groups(world, sizes))) for sizes in ([1, 1, 2], [2, 1, 1])
    )
    assert growing < shrinking


SCORES = {
    "confidence": lambda log_p: float(log_p.max()),
    "margin": lambda log_p: float(log_p.exp().topk(2).values @ torch.tensor([1.0, -1.0], dtype=torch.float64)),
    "entropy": lambda log_p: float((log_p.exp() * log_p).sum()),
}


@pytest.mark.parametrize("by", SCORES)
def test_choose_then_draw_follows_the_enumerated_law_of_its_order(by):
    world = exact.TableWorld.random(4)
    law = law_of(world, laws.ordered(world, SCORES[by]))
    assert exact.chi_square_p(law, draws(world, Ordered(by))) > ENOUGH


@pytest.mark.parametrize(("calls", "size"), [(None, 1), (2, 2)])
def test_left_to_right_draws_the_leftmost_given_those_before(calls, size):
    world = exact.TableWorld.random(5)
    law = law_of(world, lambda state, call: laws.filled(world, state, laws.hidden(world, state)[:size]))
    assert exact.chi_square_p(law, draws(world, Leftmost(calls))) > ENOUGH
    assert exact.chi_square_p(exact.law_of_random_order(world), draws(world, Leftmost(calls))) < 1e-6


@pytest.mark.parametrize("policy", [*map(Ordered, SCORES), Leftmost(), EntropyBound(0), Threshold(1.0)], ids=str)
def test_choose_then_draw_is_exact_for_an_exact_denoiser(policy):
    world = exact.ChainWorld.random(0)
    assert exact.chi_square_p(exact.law_of_chain(world), draws(world, policy)) > ENOUGH


def test_draw_then_keep_is_not_the_language_even_for_an_exact_denoiser():
    world = exact.ChainWorld.random(0)
    language, biased = exact.law_of_chain(world), law_of(world, laws.drawn_then_kept(world))
    sample = draws(world, Ordered("confidence", draw_first=True))
    assert exact.chi_square_p(biased, sample) > ENOUGH
    assert exact.chi_square_p(language, sample) < 1e-12
    assert exact.total_variation(language, biased) > 0.1
    assert "biased" in Ordered(draw_first=True).law


@pytest.mark.parametrize("start", [[3, 1, 3], [0, 3, 3], [3, 3, 2]])
def test_infilling_follows_the_law_given_what_is_frozen(start):
    world = exact.TableWorld.random(2)
    start = torch.tensor(start)
    law = exact.law_of_random_order(world, start)
    assert exact.chi_square_p(law, draws(world, FirstHitting(), start=start)) > ENOUGH


def test_a_chain_infilled_by_its_exact_denoiser_follows_the_conditional_law():
    world = exact.ChainWorld.random(0)
    joint = exact.law_of_chain(world)
    given = {text: p for text, p in joint.items() if text[1] == 2}
    law = {text: p / sum(given.values()) for text, p in given.items()}
    start = torch.tensor([world.mask, 2, world.mask, world.mask])
    assert exact.chi_square_p(law, draws(world, FirstHitting(), start=start)) > ENOUGH


@pytest.mark.parametrize(
    "windows", [Sliding(context=3, stride=2), Sliding(context=2, stride=1), BlockWindows(2)], ids=str
)
def test_windows_are_exact_on_a_chain_which_needs_no_more_than_the_last_token(windows):
    world = exact.ChainWorld.random(1, length=6)
    assert exact.chi_square_p(exact.law_of_chain(world), draws(world, FirstHitting(), windows=windows)) > ENOUGH


def test_d3pm_steps_follow_the_enumerated_reverse_process():
    world, steps = exact.TableWorld.random(5), 3
    alpha = [1 - t for t in grid(steps).tolist()]

    def chance(logits, call):
        # p(x_s = v | x_t = m) summed over v, from Bayes' rule on the transition matrices of one position.
        p = logits.softmax(-1).tolist()
        a_t, a_s = alpha[call], alpha[call + 1]
        at_s = [a_s * q for q in p[:3]]
        at_s.append(a_s * p[3] + 1 - a_s)  # q(x_s | x_θ)
        to_mask = [1 - a_t / a_s] * 3 + [1.0]  # q(x_t = m | x_s)
        weights = [a * b for a, b in zip(at_s, to_mask, strict=True)]
        return sum(weights[:3]) / sum(weights)

    law = law_of(world, laws.independently(world, chance, steps))
    assert exact.chi_square_p(law, draws(world, D3PMReverse(steps))) > ENOUGH


def test_analytic_steps_follow_the_staggered_scores():
    world, steps = exact.TableWorld.random(6), 4
    sigma = LogLinear().at(grid(steps, last=1e-5)).sigma

    def chance(logits, call):
        step = sigma[call] - sigma[call + 1]
        score = logits - torch.log(torch.expm1(sigma[call])) - math.log(3)
        score[3] = 0.0
        x = torch.full((1, 1), 3)
        weights = literal.staggered(score.exp()[None, None], step, 3) * literal.transposed(x, step, 4, 3)
        weights = weights[0, 0].clamp(min=0)
        return float(weights[:3].sum() / weights.sum())

    law = law_of(world, laws.independently(world, chance, steps))
    assert exact.chi_square_p(law, draws(world, Analytic(steps))) > ENOUGH


class Read(Empty):
    """How much is read."""

    @property
    def filled(self):
        return self.capacity


class CausalChain:
    """A Markov chain that reads from left to right."""

    def __init__(self, world):
        self.world = world
        self.spec = MambaSpec()

    def run(self, p):
        hidden = p.x[..., None].double()
        wanted = hidden if p.wanted is None else hidden.flatten(0, 1)[p.wanted]
        return States(wanted, Read(p.memory.filled + p.x.shape[1]))

    def head(self, hidden):
        probs = self.world.step[hidden.squeeze(-1).long()]
        return torch.cat([probs.log(), probs.new_zeros(*probs.shape[:-1], 1)], -1)


def test_the_autoregressive_sampler_follows_its_chain():
    world = exact.ChainWorld.random(2)
    given = {text: p for text, p in exact.law_of_chain(world).items() if text[0] == 1}
    law = {text: p / sum(given.values()) for text, p in given.items()}
    canvas = of_prompt([1], length=4, rows=DRAWS, mask=world.mask)
    step = last(continue_text(CausalChain(world), canvas))
    assert step.call == 3
    assert exact.chi_square_p(law, step.canvas.tokens) > ENOUGH


def test_a_network_with_time_conditioning_sees_the_time_of_each_event():
    """One token, whose law depends on σ: its law is the mean over its uniformly distributed share of masks."""
    schedule = Cosine(eps=1e-2)

    def network(x_t, sigma, rows):
        sigma = sigma.double()
        return torch.stack([sigma, torch.zeros_like(sigma), sigma**2, torch.zeros_like(sigma)], -1)[rows]

    share = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    sigma = -torch.log1p(-(1 - schedule.eps) * share)
    mean = torch.stack([sigma, torch.zeros_like(sigma), sigma**2], -1).softmax(-1).mean(0)
    law = {(i,): float(p) for i, p in enumerate(mean)}
    sample = last(fill(network, blank(DRAWS, 1, mask=3), FirstHitting(schedule))).canvas.tokens
    assert exact.chi_square_p(law, sample) > ENOUGH


def test_the_noise_levels_shown_by_first_hitting_are_those_of_ordered_uniforms():
    shown = []

    def network(x_t, sigma, rows):
        shown.append(1 - torch.exp(-sigma.double()))
        return torch.zeros(len(rows), 4, dtype=torch.float64)

    last(fill(network, blank(20_000, 5, mask=3), FirstHitting(LogLinear(eps=0.0))))
    means = [float(share.mean()) for share in shown]
    assert means == pytest.approx([5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6], abs=0.005)
    assert all(bool((a >= b).all()) for a, b in itertools.pairwise(shown))


def test_the_grid_shows_the_noise_level_at_the_start_of_each_step():
    shown = set()

    def network(x_t, sigma, rows):
        shown.update((1 - torch.exp(-sigma.double())).round(decimals=4).tolist())
        return torch.zeros(len(rows), 4, dtype=torch.float64)

    last(fill(network, blank(500, 5, mask=3), Ancestral(4, LogLinear(eps=0.01))))
    assert shown == {0.99, 0.7425, 0.495, 0.2475}
