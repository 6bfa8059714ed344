"""SSD-LM equals its original number by number; its loop has the law of the data, and its bound is one."""

from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.diffusion import ssd_lm
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.continuous import NoisyWindow, VectorPrediction, alpha, sigma
from unmask.diffusion.ssd_lm import SSDLM, Simplex, add_noise_, chosen_block, cosine_share, levels, simplex_step_nats
from unmask.errors import UserError
from unmask.random import Noise, keys
from unmask.sampling.logits import inverse_cdf
from unmask.sampling.policies.gaussian import Move
from unmask.sampling.policies.simplex import SimplexSteps, project_prediction

GOLDEN = Path(__file__).parent.parent / "golden/baselines/ssdlm_cases.npz"


@pytest.fixture(scope="module")
def told():
    with np.load(GOLDEN) as arrays:
        return {name: torch.as_tensor(arrays[name]) for name in arrays.files}


@dataclass
class Mix:
    """The recorded network: tanh(x A + mean(x) C) B over the text before and the block."""

    told: dict
    unseen: None = None

    def embed(self, tokens):
        return self.told["lut"][tokens]

    def trunk(self, x, *, rows=None, lengths=None):
        return torch.tanh(x @ self.told["net_A"] + x.mean(1, keepdim=True) @ self.told["net_C"])

    def head(self, hidden):
        return hidden @ self.told["net_B"]

    def some(self, index):
        return self


def parts_of(told):
    simplex, time = Simplex(17, 8), torch.nn.Linear(1, 8)
    simplex.matrix.data, time.weight.data, time.bias.data = told["embed_sum"], told["time_w"][:, None], told["time_b"]
    return {"simplex": simplex.requires_grad_(False), "time": time.requires_grad_(False)}


def close(found, expected, tolerance=3e-5):
    found, expected = found.double(), expected.double()
    assert ((found - expected).abs() / (1 + expected.abs())).max() < tolerance


def by_cdf(u):
    """Draws with given uniform numbers."""
    return lambda logits: inverse_cdf(logits.flatten(0, 1), u.flatten()).view(logits.shape[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("total", [12, 1000])
def test_the_schedule_is_that_of_the_original_and_begins_without_noise(told, total):
    t = told[f"time{total}_t"]
    close(cosine_share(t.double() / total), told[f"time{total}_alpha_bar"])
    close(cosine_share((t.double() - 1) / total), told[f"time{total}_alpha_bar_prev"])
    assert cosine_share(torch.zeros(1, dtype=torch.float64)) == 1


@pytest.mark.slow
def test_the_projections_are_those_of_the_original(told):
    reading = VectorPrediction(told["proj_logits"], None, scale=5.0)
    for p in (0.0, 0.2, 0.5, 0.9, 0.99):
        even = project_prediction(reading, "even", p, by_cdf(torch.zeros(0)))
        assert torch.equal(5 * even, told[f"proj_even_{p}"])
        close(5 * project_prediction(reading, "uneven", p, by_cdf(torch.zeros(0))), told[f"proj_uneven_{p}"])
    for p in (0.2, 0.9):
        found = project_prediction(reading, "sampling", p, by_cdf(told[f"proj_sampling_{p}_u"]))
        assert torch.equal(5 * found, told[f"proj_sampling_{p}"])
    assert (project_prediction(reading, "even", 1.0, by_cdf(torch.zeros(0))) == 1).all()


def test_a_training_step_is_that_of_the_original(told):
    objective, parts = SSDLM(steps=12, block=5), parts_of(told)
    gamma = levels(told["train_t"].long(), 12)
    x_t = add_noise_(told["train_z"].clone(), told["train_x0"], gamma)
    close(5 * x_t, told["train_xt"])
    noisy = objective.vectors(x_t, told["train_t"] / 12, parts)
    close(noisy, told["train_embeds"])
    vectors = torch.cat((told["lut"][told["train_context"]], noisy), 1)
    logits = Mix(told).head(Mix(told).trunk(vectors))[:, -5:]
    close(logits, told["train_logits"])
    ce = torch.nn.functional.cross_entropy(logits.flatten(0, 1), told["train_x0"].flatten(), reduction="none")
    close(ce.view(2, 5), told["train_ce"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["even", "sampling"])
def test_a_run_is_that_of_the_original_token_for_token(told, kind):
    """The recorded vocabulary has no mask: a column of −∞ stands for it."""
    objective, parts, network = SSDLM(steps=12, block=5), parts_of(told), Mix(told)
    policy = SimplexSteps(12, projection=kind, p=float(told[f"run_{kind}_top_p"]), last="argmax")
    path, context, normals = objective.path(12, parts), told["train_context"], told[f"run_{kind}_normals"]
    for block in range(2):
        z = normals[13 * block].clone()
        for call in range(12):
            vectors = objective.entered(network, NoisyWindow(z, path.gamma[call], path.level[call], context), parts)
            logits = network.head(network.trunk(vectors))[:, -5:]
            close(logits, told[f"run_{kind}_logits"][12 * block + call])
            u = told["run_sampling_u"][12 * block + call]
            normal = normals[13 * block + call + 1].clone()
            reading = VectorPrediction(logits, None, scale=5.0)
            z = policy.move(Move(z, reading, path.gamma[call + 1], path.gamma[call], normal, by_cdf(u)))
        context = torch.cat((context, logits.argmax(-1)), 1)
    assert torch.equal(context[:, -10:], told[f"run_{kind}_tokens"])


# A world of one position: what the network knows of the word is exact, given the noisy corner.

DOUBLE = torch.float64


def posterior(z, gamma, prior):
    """p(w | x_t) of a word drawn from `prior`: log N_v differ by 2√ᾱ/(1 − ᾱ) x_v."""
    return (prior.log() + 2 * alpha(gamma) / torch.sigmoid(gamma) * z).log_softmax(-1)


def grid(words):
    """Noise of as many numbers as there are words, on a product grid; its weights."""
    at, of = np.polynomial.hermite_e.hermegauss(28)
    nodes = torch.tensor(list(product(at, repeat=words)), dtype=DOUBLE)
    weights = torch.tensor(list(product(of, repeat=words)), dtype=DOUBLE).prod(1) / (2 * np.pi) ** (words / 2)
    return nodes, weights


def law_of_loop(prior, belief, total):
    """The word that the published loop gives, by quadrature over each step's fresh noise."""
    nodes, weights = grid(len(prior))
    now = None
    for t in range(total, 0, -1):
        gamma = levels(torch.tensor(t), total)
        corners = 2 * torch.eye(len(prior), dtype=DOUBLE) - 1
        starts = torch.zeros(1, len(prior), dtype=DOUBLE) if now is None else alpha(gamma) * corners
        noise = 1.0 if now is None else sigma(gamma)  # the loop begins with noise of size 1 and no signal
        each = torch.stack([weights @ posterior(start + noise * nodes, gamma, belief).exp() for start in starts])
        now = each[0] if now is None else now @ each
    return now


@pytest.mark.slow
@pytest.mark.parametrize("total", [1, 3, 4])
def test_the_published_loop_with_the_exact_posterior_gives_the_law_of_the_data_for_every_number_of_steps(total):
    prior = torch.tensor([0.7, 0.3], dtype=DOUBLE)
    torch.testing.assert_close(law_of_loop(prior, prior, total), prior, rtol=0, atol=5e-3)


def bound_of(prior, belief, total):
    """The bound (b) of every word by quadrature over x_t and x_{t−1}."""
    nodes, weights = grid(len(prior))
    totals = []
    for w in range(len(prior)):
        corner = 2 * torch.eye(len(prior), dtype=DOUBLE)[w] - 1
        total_w = 0.0
        for t in range(1, total + 1):
            gamma = levels(torch.tensor(t), total)
            log_p = posterior(alpha(gamma) * corner + sigma(gamma) * nodes, gamma, belief)
            if t == 1:
                total_w = total_w - weights @ log_p[:, w]
                continue
            before = levels(torch.tensor(t - 1), total)
            x_s = alpha(before) * corner + sigma(before) * nodes
            # Every x_t with every x_{t−1}: they are independent.
            both = log_p.repeat_interleave(len(nodes), 0), x_s.repeat(len(nodes), 1)
            count = len(nodes) ** 2
            kl = simplex_step_nats(*both, torch.full((count,), w), before.expand(count)).view(len(nodes), -1)
            total_w = total_w + weights @ kl @ weights
        totals.append(total_w)
    return torch.stack(totals)


@pytest.mark.slow
@pytest.mark.parametrize("belief", [[0.7, 0.3], [0.2, 0.8]])
def test_the_bound_is_at_least_minus_log_p_of_its_own_loop(belief):
    prior, belief = torch.tensor([0.7, 0.3], dtype=DOUBLE), torch.tensor(belief, dtype=DOUBLE)
    bounds, p = bound_of(prior, belief, 3), law_of_loop(prior, belief, 3)
    assert (bounds >= -p.log() - 2e-3).all()
    assert torch.exp(-bounds).sum() <= 1 + 1e-6
    if belief[0] == prior[0]:
        assert bounds.tolist() == pytest.approx([0.360, 1.214], abs=2e-3)


@dataclass(frozen=True)
class Word:
    """A network that computes the exact posterior from softmax(K x_t), at one noise level per row."""

    prior: torch.Tensor
    total: int
    scale: float
    unseen: None = None
    seen: list = field(default_factory=list)

    def embed(self, tokens):
        return torch.zeros(*tokens.shape, len(self.prior) + 2)

    def trunk(self, x, *, rows=None, lengths=None):
        self.seen.append((rows, lengths))
        return x.flatten(0, 1)[rows]

    def head(self, hidden):
        x, told = hidden[:, :-1].double().log() / self.scale, hidden[:, -1].double()
        gamma = levels((told * self.total).round().long(), self.total)[:, None]
        logits = self.prior.log() + 2 * alpha(gamma) / torch.sigmoid(gamma) * x[:, :-1]
        return torch.nn.functional.pad(logits, (0, 1)).float()

    def some(self, index):
        return self


class Identity(dict):
    """Parts that show the network softmax(K x_t), and the time in a number of its own."""

    def __init__(self, words):
        simplex = Simplex(words + 1, words + 2)
        simplex.matrix.data = torch.eye(words + 1, words + 2)
        time = torch.nn.Linear(1, words + 2)
        time.weight.data, time.bias.data = torch.eye(words + 2)[:, -1:], torch.zeros(words + 2)
        super().__init__(simplex=simplex.requires_grad_(False), time=time.requires_grad_(False))


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 3])
def test_the_estimate_has_the_bound_as_its_mean_and_a_row_pays_all_its_blocks(length):
    prior, belief, rows = torch.tensor([0.7, 0.3], dtype=DOUBLE), torch.tensor([0.4, 0.6], dtype=DOUBLE), 30_000
    objective = SSDLM(steps=3, block=1, scale=1.0)
    t = (torch.arange(rows, dtype=DOUBLE) + 0.5) / rows
    noise = Noise(t, torch.zeros(rows, length, dtype=DOUBLE), keys(5, torch.arange(rows)))
    for w, expected in enumerate(bound_of(prior, belief, 3)):
        found = objective.nats(
            Word(belief, 3, 1.0), CleanRows(torch.full((rows, length), w), noise=noise, mask=2, parts=Identity(2))
        ).bound.sum(1)
        error = found.std() / rows**0.5
        assert abs(found.mean() - length * expected) < 4 * error + 1e-3
        assert error < 0.05


@pytest.mark.slow
def test_the_training_loss_is_no_bound_and_as_many_times_it_as_there_are_steps_is_one():
    prior, total, rows = torch.tensor([0.7, 0.3], dtype=DOUBLE), 3, 20_000
    nodes, weights = grid(2)
    gammas = [levels(torch.tensor(t), total) for t in range(1, total + 1)]
    corners = 2 * torch.eye(2, dtype=DOUBLE) - 1
    told = torch.stack(
        [
            sum(-weights @ posterior(alpha(g) * corners[w] + sigma(g) * nodes, g, prior)[:, w] for g in gammas)
            / total
            for w in range(2)
        ]
    )
    assert torch.exp(-told).sum() > 1.3, "these numbers are no -log p of anything"
    assert (total * told >= bound_of(prior, prior, total)).all()
    measured = SSDLM(steps=total, block=1, scale=1.0).estimators()["cross-entropy"]
    assert "not a bound" in measured.means
    t = (torch.arange(rows, dtype=DOUBLE) + 0.5) / rows
    noise = Noise(t, torch.zeros(rows, 1, dtype=DOUBLE), keys(5, torch.arange(rows)))
    for w in range(2):
        x0 = torch.full((rows, 1), w)
        found = measured.nats(Word(prior, total, 1.0), CleanRows(x0, noise=noise, mask=2, parts=Identity(2))).bound
        assert abs(found.mean() - told[w]) < 4 * found.std() / rows**0.5 + 1e-3


def test_the_blocks_of_a_row_cover_its_free_tokens_once_whatever_the_shift():
    free = torch.zeros(1, 13, dtype=torch.bool)
    free[:, 2:12] = True
    for shift in range(4):
        covered = torch.zeros(13, dtype=torch.long)
        of = int(chosen_block(free, 4, torch.zeros(1), torch.tensor([shift])).of)
        for number in range(of):
            span = chosen_block(free, 4, torch.tensor([(number + 0.5) / of]), torch.tensor([shift]))
            covered[span.columns[0][span.real[0]]] += 1
            assert span.real.any()
        assert torch.equal(covered, free[0].long()), shift


@pytest.mark.slow
def test_the_network_sees_the_text_before_a_block_and_nothing_after_it():
    objective = SSDLM(steps=5, block=4)
    noise = Noise(torch.tensor([0.5] * 6), torch.rand(6, 11), keys(1, torch.arange(6)))
    network = Word(torch.tensor([0.7, 0.3], dtype=DOUBLE), 5, 5.0)
    objective.nats(network, CleanRows(torch.randint(2, (6, 11)), noise=noise, mask=2, parts=Identity(2)))
    rows, lengths = network.seen[0]
    width = int(lengths.max())
    for row in range(6):
        own = rows[rows // width == row] % width
        assert own.max() + 1 == lengths[row]
        assert len(own) <= 4


@pytest.mark.slow
def test_the_kl_of_a_step_is_that_of_the_two_explicit_densities():
    torch.manual_seed(0)
    gamma, log_p = torch.tensor(0.3, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE).log_softmax(-1)
    x, corners = torch.randn(5, dtype=DOUBLE), 2 * torch.eye(5, dtype=DOUBLE) - 1
    logs = torch.distributions.Normal(alpha(gamma) * corners, sigma(gamma)).log_prob(x).sum(-1)
    expected = logs[3] - torch.logsumexp(log_p + logs, 0)
    found = simplex_step_nats(log_p[None], x[None], torch.tensor([3]), gamma[None])
    assert float(found) == pytest.approx(float(expected))
    assert expected <= -log_p[3] + 1e-9


@pytest.mark.slow
def test_the_simplex_is_drawn_for_the_block_only(monkeypatch):
    drawn, original = [], ssd_lm.gaussians
    monkeypatch.setattr(ssd_lm, "gaussians", lambda *given: drawn.append(given[2]) or original(*given))
    noise = Noise(torch.tensor([0.5]), torch.rand(1, 40), keys(1, torch.arange(1)))
    network = Word(torch.tensor([0.7, 0.3], dtype=DOUBLE), 5, 5.0)
    SSDLM(steps=5, block=4).nats(
        network, CleanRows(torch.randint(2, (1, 40)), noise=noise, mask=2, parts=Identity(2))
    )
    assert set(drawn) == {(4, 3)}


def test_settings_that_cannot_be_are_refused():
    for bad, word in (({"block": 0}, "block"), ({"steps": 0}, "step"), ({"scale": 0.0}, "scale")):
        with pytest.raises(UserError, match=word):
            replace(SSDLM(), **bad)
    with pytest.raises(UserError, match="p must"):
        SimplexSteps(p=1.5)
    assert SSDLM().room(rows=2, vocab=50_000) == 4 * 4 * 2 * 25 * 50_000
