"""Estimators against enumeration: nothing is drawn where everything can be counted."""

import math
from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.polynomial.legendre import leggauss
from scipy.stats import beta

from evaluation.worlds import number_of, passages_of, per_token, tally_of, texts_of
from exact import (
    DOUBLE,
    ChainWorld,
    TableWorld,
    TinyNetwork,
    every_text,
    expected,
    law_of_random_order,
    log_p_hidden,
    loss_of_mask,
    nodes,
)
from unmask.diffusion.bound import exact_bound
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.schedule import SCHEDULES
from unmask.errors import UserError
from unmask.evaluation.likelihood.error_bars import log_mean, of_tangent_bound, tangent_bound
from unmask.evaluation.likelihood.estimators import (
    LAST,
    ByOrder,
    Duel,
    Pseudo,
    estimator,
)
from unmask.evaluation.likelihood.passes import other_side
from unmask.random import Noise

X0 = torch.tensor([0, 2, 1])
ORDERS = torch.tensor(list(permutations(range(3))), dtype=DOUBLE) / 3
NONE = torch.zeros(6, 3, dtype=torch.bool)
DEFAULTS = [SCHEDULES.make(name) for name in SCHEDULES]


def along_every_order(world, x0: torch.Tensor) -> torch.Tensor:
    """ByOrder for each of the 3! orders (6, l)."""
    t = torch.zeros(6, dtype=DOUBLE)
    return ByOrder(budget=7).nats(
        world.network, CleanRows(x0.expand(6, -1), noise=Noise(t, ORDERS), mask=3, frozen=NONE)
    )


def test_the_count_form_is_unbiased_over_every_k_and_every_order():
    world, total = TableWorld.random(), 0.0
    for k in (1, 2, 3):
        t = torch.full((6,), (k - 0.5) / 3, dtype=DOUBLE)
        x0 = X0.expand(6, -1)
        nats = estimator("count").nats(world.network, CleanRows(x0, noise=Noise(t, ORDERS), mask=3, frozen=NONE))
        total += float(nats.sum()) / 18
    assert total == pytest.approx(float(exact_bound(world.network, X0, mask=3)), abs=1e-12)


@pytest.mark.parametrize("schedule", DEFAULTS, ids=repr)
def test_the_count_form_is_the_continuous_bound_of_a_network_that_sees_the_noise_level(schedule):
    """k is uniform and the hidden share the k-th smallest uniform: with both integrated out it is ∫ E[ce]/t dt."""
    network = TinyNetwork().requires_grad_(False)
    node, weight = (torch.tensor(part, dtype=DOUBLE) for part in leggauss(80))
    share, weight = (node + 1) / 2, weight / 2

    def paid(net, x0, t, u, mask):
        return MDLM(schedule).nats(net, CleanRows(x0, noise=Noise(t, u), mask=mask)).bound

    by_time = expected(paid, SimpleNamespace(network=network, mask=3), X0, *nodes())
    by_k = 0.0
    for count in (1, 2, 3):
        for s, w in zip(share, weight.tolist(), strict=True):
            # Uniforms whose `count`-th smallest is s: ranks below it at s/2, above it at (1 + s)/2.
            rank = ORDERS * 3
            u = torch.where(rank < count - 1, s / 2, torch.where(rank > count - 1, (1 + s) / 2, s))
            u = u + 1e-12 * rank * (rank != count - 1)  # no ties
            t = torch.full((6,), (count - 0.5) / 3, dtype=DOUBLE)
            form = estimator("count", objective=MDLM(schedule))
            nats = form.nats(network, CleanRows(X0.expand(6, -1), noise=Noise(t, u), mask=3, frozen=NONE))
            by_k += w * beta.pdf(float(s), count, 4 - count) * float(nats.sum()) / 6 / 3
    assert by_k == pytest.approx(by_time, rel=1e-5)  # with α_1 = 0 the noise level is infinite at the end


@pytest.mark.parametrize("schedule", DEFAULTS, ids=repr)
@pytest.mark.parametrize("name", ["time", "steps"])
def test_the_bound_by_time_and_by_steps_lies_above_the_likelihood_with_default_schedules(name, schedule):
    """On average over texts: one text may cost less than −log p, because the grid's distribution is not quite p."""
    world, total = ChainWorld.random(letters=2, length=2), 200
    one = estimator(name, objective=MDLM(schedule), steps=total)

    def paid(network, x, t, u, mask):
        return one.nats(
            network, CleanRows(x, noise=Noise(t, u), mask=mask, frozen=torch.zeros_like(x, dtype=torch.bool))
        )

    each = (torch.arange(total, dtype=DOUBLE) + 0.5) / total
    parts = {
        "time": [nodes(0.0, LAST, cells=1), nodes(LAST, 1.0)],
        "steps": [(each, torch.full_like(each, 1 / total))],
    }
    texts = every_text(2, 2)
    nll = world.nll(texts)
    found = torch.tensor([sum(expected(paid, world, x0, *part) for part in parts[name]) for x0 in texts])
    entropy, mean = (float((nll.neg().exp() * nats).sum()) for nats in (nll, found))
    assert "upper bound" in one.means
    assert entropy - 1e-10 < mean < 1.005 * entropy


def test_the_mean_over_all_orders_is_the_bound():
    world = TableWorld.random()
    nats = along_every_order(world, X0)
    assert float(nats.sum(1).mean()) == pytest.approx(float(exact_bound(world.network, X0, mask=3)), abs=1e-12)


def test_an_order_pays_what_its_chain_rule_says_token_by_token():
    world = TableWorld.random()
    for order, nats in zip(permutations(range(3)), along_every_order(world, X0), strict=True):
        rank = torch.tensor(order)
        for position in range(3):
            x_t = torch.where(rank >= rank[position], 3, X0)
            assert float(nats[position]) == pytest.approx(-float(log_p_hidden(world, x_t, position)[X0[position]]))


def test_all_orders_weighted_are_the_likelihood_of_revealing_in_random_order():
    world = TableWorld.random()
    law = law_of_random_order(world)
    for x0 in every_text(3, 3):
        nats = along_every_order(world, x0).sum(1).numpy()[:, None]
        assert np.exp(-log_mean(nats)[0]) == pytest.approx(law[tuple(x0.tolist())], rel=1e-6)


@pytest.mark.parametrize("reveal", [1, 2, 3])
@pytest.mark.parametrize("policy", ["confidence", "margin", "entropy", "left"])
def test_the_likelihood_of_an_order_policy_sums_to_one_over_all_texts(policy, reveal):
    world, texts = TableWorld.random(), every_text(3, 3)
    one = estimator("duel", policy=policy, reveal=reveal)
    nothing = torch.zeros(len(texts), 3, dtype=torch.bool)
    u = torch.zeros(len(texts), 3, dtype=DOUBLE)
    nats = one.nats(world.network, CleanRows(texts, noise=Noise(u[:, 0], u), mask=3, frozen=nothing))
    assert float((-nats.sum(1)).exp().sum()) == pytest.approx(1.0, abs=1e-9)
    assert one.exact
    assert not one.chance


def test_the_policy_reveals_where_the_network_is_surest():
    world = TableWorld.random()
    hidden, total = {0, 1, 2}, 0.0
    while hidden:
        x_t = X0.clone()
        x_t[list(hidden)] = 3
        best = max(hidden, key=lambda i: float(log_p_hidden(world, x_t, i).max()))
        total -= float(log_p_hidden(world, x_t, best)[X0[best]])
        hidden.remove(best)
    zero = torch.zeros(1, 3, dtype=DOUBLE)
    nats = Duel().nats(world.network, CleanRows(X0[None], noise=Noise(zero[:, 0], zero), mask=3, frozen=NONE[:1]))
    assert float(nats.sum()) == pytest.approx(total, abs=1e-12)


def test_pseudo_likelihood_hides_one_token_at_a_time():
    world, zero = TableWorld.random(), torch.zeros(1, 3, dtype=DOUBLE)
    nats = Pseudo(budget=4).nats(
        world.network, CleanRows(X0[None], noise=Noise(zero[:, 0], zero), mask=3, frozen=NONE[:1])
    )
    assert nats[0].tolist() == pytest.approx([loss_of_mask(world, X0, (i,)) for i in range(3)])


@pytest.mark.parametrize("name", ["count", "order", "duel"])
def test_given_tokens_make_every_estimator_conditional(name):
    """Exact for the chain's own denoiser: −log p(rest | first)."""
    world = ChainWorld.random(length=4)
    texts = every_text(3, 4)
    joint = world.nll(texts)
    rest = joint + world.start[texts[:, 0]].log()
    number = number_of(world, passages_of(texts, given=1), name, passes=1 if name != "count" else 40)
    truth = float(rest.sum()) / (3 * len(texts))
    assert number.tokens == 3 * len(texts)
    assert number.nats_per_token == pytest.approx(truth, abs=max(1e-9, 4 * number.standard_error))


@pytest.mark.parametrize("name", ["count", "time", "steps", "order", "weighted", "duel"])
def test_all_estimators_agree_within_error_on_a_world_whose_likelihood_is_known(name):
    world = ChainWorld.random(letters=5, length=12)
    texts = texts_of(world, 200)
    truth = per_token(world.nll(texts), texts)
    passes = {"count": 8, "time": 8, "steps": 8}.get(name, 2 if name != "duel" else 1)
    number = number_of(world, passages_of(texts), name, passes=passes, budget=1 << 16, steps=4000)
    # One step below t = 0.001, and 4000 steps, lie a little above: both by less than 0.1 %.
    assert abs(number.nats_per_token - truth) < 3 * number.standard_error + 1e-3 * truth + 1e-9
    assert number.standard_error < 0.03


def test_orders_of_an_inconsistent_network_have_a_jensen_gap_and_weighted_orders_lie_below_the_mean():
    world, texts = TableWorld.random(), every_text(3, 3)
    mean = number_of(world, passages_of(texts), "order", passes=6)
    weighted = number_of(world, passages_of(texts), "weighted", passes=6)
    assert mean.jensen_gap is not None
    assert mean.jensen_gap > 0.05
    assert weighted.nats_per_token == pytest.approx(mean.nats_per_token - mean.jensen_gap)


@pytest.mark.parametrize("passes", [2, 3])
def test_the_tangent_bound_lies_below_and_the_mean_above_for_every_text_by_enumeration(passes):
    """Every way to draw the orders of three tokens, for every text of a world whose orders disagree."""
    world = TableWorld.random()
    for text, p in law_of_random_order(world).items():
        nats = []
        for order in permutations(range(3)):
            states = [torch.tensor([world.mask if i in order[j:] else text[i] for i in range(3)]) for j in range(3)]
            nats.append(-sum(float(log_p_hidden(world, x, i)[text[i]]) for x, i in zip(states, order, strict=True)))
        assert np.exp(-np.array(nats)).mean() == pytest.approx(p)
        every_draw = np.array(list(product(nats, repeat=passes))).T
        assert tangent_bound(every_draw).mean() < -math.log(p) < np.mean(nats)


def test_the_tangent_bound_is_tight_and_sure_where_all_orders_agree():
    nats = np.full((4, 5), 3.25)
    assert tangent_bound(nats) == pytest.approx(nats[0])
    assert of_tangent_bound(nats, np.ones(5)) == pytest.approx(0)
    assert of_tangent_bound(nats[:2], np.ones(5)) == math.inf


def test_a_likelihood_has_two_sides_and_a_consistent_network_none_between_them():
    world, texts = TableWorld.random(), every_text(3, 3)
    truth = -sum(math.log(p) for p in law_of_random_order(world).values()) / texts.numel()
    number = number_of(world, passages_of(texts), "order", passes=64)
    assert number.at_least < truth < number.nats_per_token
    assert truth - number.at_least < 0.1
    assert 0 < number.at_least_error < 0.1
    chain = ChainWorld.random(letters=3, length=4)
    exact = number_of(chain, passages_of(texts_of(chain, 20)), "order", passes=3)
    assert exact.at_least == pytest.approx(exact.nats_per_token, abs=1e-6)
    assert number_of(world, passages_of(texts), "count", passes=3).at_least is None
    assert number_of(world, passages_of(texts), "order", passes=1).at_least is None


def test_a_lower_bound_below_nothing_is_not_told():
    """Orders of a long text differ by many nats: one of them throws the tangent to the other below 0."""
    far, near = np.array([[100.0], [160.0]]), np.array([[100.0], [100.1]])
    assert other_side(far, np.ones(1) * 128, estimator("order")) == {}
    assert other_side(near, np.ones(1) * 128, estimator("order"))["at_least"] > 0.7


@pytest.mark.parametrize("name", ["count", "time", "order", "duel", "pseudo"])
def test_the_network_is_asked_at_hidden_positions_only(name):
    world = ChainWorld.random(length=6)

    class Watching:
        mask = world.mask

        @staticmethod
        def network(x_t, sigma, rows):
            assert (x_t.flatten()[rows] == world.mask).all()
            return world.network(x_t, sigma, rows)

    tally_of(Watching, passages_of(texts_of(world, 5)), name, passes=1)


def test_d3pm_without_mass_on_the_mask_and_sedd_of_a_denoiser_agree_with_the_bound():
    world = ChainWorld.random(letters=3, length=8)
    texts = texts_of(world, 100)
    truth = per_token(world.nll(texts), texts)

    class Scores:  # SEDD subtracts log(e^σ − 1) + log(v − 1) itself
        mask = world.mask

        @staticmethod
        def network(x_t, sigma, rows):
            p = world.network(x_t, sigma, rows)[:, :3].log_softmax(-1) + np.log(3)
            return torch.cat([p, torch.zeros(len(rows), 1, dtype=DOUBLE)], -1)

    class Sure:  # no mass on the mask, and clean text is repeated: D3PM is MDLM plus nothing
        mask = world.mask

        @staticmethod
        def network(x_t, sigma, rows):
            logits = world.network(x_t, sigma, rows)
            logits[:, -1] = -60.0
            return logits

    for one, objective in ((Scores, "sedd"), (Sure, "d3pm")):
        number = number_of(
            one, passages_of(texts), "auto", passes=16, objective=objective, budget=1 << 16, steps=2000
        )
        assert abs(number.nats_per_token - truth) < 3.5 * number.standard_error + 2e-3 * truth, objective


def test_names_that_do_not_exist_and_do_not_fit_are_refused():
    with pytest.raises(UserError, match="Did you mean 'count'"):
        estimator("coutn")
    with pytest.raises(UserError, match="no estimator for ar models is called 'count'"):
        estimator("count", objective="ar")
    with pytest.raises(UserError, match="Did you mean 'margin'"):
        estimator("duel", policy="margn")
    with pytest.raises(UserError, match="--reveal must be at least 1"):
        estimator("duel", reveal=0)
