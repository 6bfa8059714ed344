"""Plaid equals its original term by term, is a bound by enumeration, and its sampler has the law of the data."""

import itertools
import json
from dataclasses import dataclass, replace
from math import log, pi
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.polynomial.hermite_e import hermegauss
from safetensors import safe_open

from unmask.diffusion import plaid
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.continuous import alpha, carried_on, posterior, sigma
from unmask.diffusion.plaid import Plaid
from unmask.errors import UserError
from unmask.model.backbone import build
from unmask.model.backbones.caduceus import CaduceusSpec
from unmask.model.denoiser import Denoiser
from unmask.random import Noise, keys
from unmask.training.phases import phases
from unmask.training.settings import Train, settle_training

GOLDEN = Path(__file__).parent.parent / "golden/dna"


@dataclass(frozen=True)
class Original:
    """The original's transformer, from vectors to logits of all tokens and one more: the mask."""

    weights: dict[str, torch.Tensor]
    blocks: int
    heads: int
    unseen: None = None

    def trunk(self, x, *, rows=None, lengths=None):
        w = self.weights
        for i in range(self.blocks):
            name = f"model.blocks.{i}."
            h = rms(x, w[name + "rmsnorm1.weight"])
            x = x + self.attention(h, name) / self.blocks**0.5
            h = rms(x, w[name + "rmsnorm2.weight"]) @ w[name + "mlp.fc1.weight"].mT
            x = x + F.gelu(h, approximate="tanh") @ w[name + "mlp.fc2.weight"].mT / self.blocks**0.5
        return F.layer_norm(x, x.shape[-1:]) * w["model.output_norm.weight"]

    def attention(self, h, name):
        b, l, d = h.shape
        q, k, v = (h @ self.weights[name + "attn_qkv.weight"].mT).view(b, l, 3, self.heads, -1).unbind(2)
        angles = torch.arange(l)[:, None] * self.weights["model.rotary_emb.inv_freq"]
        q, k = (turned(one, angles) for one in (q, k))
        out = F.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v)))
        return out.transpose(1, 2).reshape(b, l, d) @ self.weights[name + "attn_out.weight"].mT

    def head(self, hidden):
        logits = hidden @ self.weights["model.output_linear.weight"].mT + self.weights["model.output_linear.bias"]
        return F.pad(logits, (0, 1))  # the mask, which is never predicted

    def embed(self, tokens):
        raise AssertionError("Plaid has an embedding of its own")

    def some(self, index):
        return self


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def turned(x, angles):
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
    one, other = x.chunk(2, -1)
    return torch.cat((one * cos - other * sin, one * sin + other * cos), -1)


class Golden:
    """The recorded weights as parts and network, and the recorded runs."""

    def __init__(self) -> None:
        with safe_open(GOLDEN / "plaid_tiny.safetensors", "pt") as file:
            self.weights = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            self.config = json.loads(file.metadata()["config"])
        with np.load(GOLDEN / "plaid_tiny_cases.npz") as arrays:
            self.cases = {name: torch.as_tensor(arrays[name]) for name in arrays.files}
        for name, value in self.weights.items():
            value.requires_grad_("inv_freq" not in name)
        self.mask = self.config["vocab_size"]
        self.network = Original(self.weights, self.config["n_blocks"], self.config["n_heads"])
        w, parts = self.weights, Plaid(embed=6).parts(vocab=self.mask + 1, width=32)
        put(parts["embedding"], matrix=F.pad(w["embedding_matrix.matrix"], (0, 0, 0, 1), value=1.0))
        put(parts["levels"], **{name: w[f"noise_schedule.{name}"] for name in ("W1", "b1", "W2")})
        put(parts["levels"], **{name: w[f"gamma_bounds.{name}"][None] for name in ("gamma_0", "gamma_1")})
        put(parts["entry"].noisy, weight=w["model.input_linear.weight"])
        put(parts["entry"].estimate, weight=w["model.selfcond_linear.weight"])
        put(parts["entry"].level, weight=w["model.gamma_linear.weight"])
        self.parts = parts

    def terms(self, run: str):
        told = {name.removeprefix(f"{run}_"): value for name, value in self.cases.items() if name.startswith(run)}
        first = torch.arange(8) < told["reconst_bs"]
        clean = CleanRows(self.cases["x"], parts=self.parts, mask=self.mask)
        draw = plaid.Draw(told["t"], told["noise"], first, told["selfcond_mask"] > 0)
        return told, plaid.terms(self.network, clean, draw, ramp=float(told["bias_scale"]))


def put(module, **values):
    """Use these tensors in place of a module's parameters, so that their gradients are found where they came from."""
    for name, value in values.items():
        del module._parameters[name]
        setattr(module, name, value)


@pytest.fixture
def golden() -> Golden:
    return Golden()


def close(found, told, tolerance):
    found, told = found.detach().double(), told.double()
    assert ((found - told).abs() / (1 + told.abs())).max() < tolerance


@pytest.mark.parametrize("run", ["train0", "train1", "eval"])
def test_the_terms_are_those_of_the_original(golden, run):
    told, found = golden.terms(run)
    later = torch.arange(8) >= told["reconst_bs"]
    close(found.logits[..., :-1], told["logits"], 2e-5)
    close(found.x, told["x_reconst"], 2e-5)
    close(found.guess, told["x_selfcond"], 2e-5)
    close(found.reconstruction.mean(1)[~later], told["reconst_per_seq"], 1e-5)
    close(found.diffusion.mean(1)[later], told["diffusion_per_seq"][later], 1e-5)
    close(found.prior.mean(), told["prior_loss"], 1e-5)


@pytest.mark.slow
def test_the_schedule_is_that_of_the_original(golden):
    levels = golden.parts["levels"]
    u, slope = levels.shape(golden.cases["grid_t"])
    close(u, golden.cases["grid_gamma_unit"], 1e-9)
    told = golden.cases
    close(levels(told["train0_t"]), told["train0_gamma"], 1e-7)
    low, high = levels.ends()
    _, slope = levels.shape(told["train0_t"])
    close((high - low) * slope, told["train0_gamma_prime"], 1e-7)
    close(golden.parts["embedding"]()[:-1], told["embedding_normalised"], 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["train0", "train1"])
def test_the_gradients_are_those_of_the_original(golden, run):
    """With the rule of the schedule (the gradient of the squared loss) and the cuts of self-conditioned rows."""
    told, found = golden.terms(run)
    later = torch.arange(8) >= told["reconst_bs"]
    loss = found.reconstruction.mean(1)[~later].mean() + found.diffusion.mean(1)[later].mean() + found.prior.mean()
    close(loss, told["loss"], 1e-5)
    loss.backward()
    with safe_open(GOLDEN / f"plaid_tiny_grads_{run}.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            expected = file.get_tensor(name)
            far = (golden.weights[name].grad - expected).abs().max() / expected.abs().max()
            assert far < 1e-3, name


# A world of one position and three words: its bound, its law and its denoiser are integrals over one or two numbers.

WORDS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
AT, OF = (torch.from_numpy(one) for one in hermegauss(64))
PLANE = torch.cartesian_prod(AT, AT)  # nodes of an integral over a normal vector of two numbers
WEIGHTS = torch.cartesian_prod(OF, OF).prod(1) / (2 * pi)


@dataclass(frozen=True)
class Word:
    """A network that knows the frequencies of the words, or believes others; with the output prior it is exact."""

    belief: torch.Tensor
    unseen: None = None

    def trunk(self, x, *, rows=None, lengths=None):
        return x

    def head(self, hidden):
        return F.pad(self.belief.log().to(hidden.dtype), (0, 1)).expand(*hidden.shape[:-1], -1)

    def embed(self, tokens):
        raise AssertionError

    def some(self, index):
        return self


def world(**options):
    torch.manual_seed(1)
    parts = Plaid(embed=2).parts(vocab=4, width=2)
    for part in parts.values():
        part.double().requires_grad_(False)
    parts["levels"].gamma_0.fill_(options.get("cleanest", -3.0))
    return parts


def denoised(parts, z, gamma, belief):
    """x̂ and the posterior of the words, for noisy vectors (n 2)."""
    table = parts["embedding"]()[:3]
    p = (belief.log() + alpha(gamma) / torch.sigmoid(gamma) * (z @ table.mT)).softmax(-1)
    return p @ table, p


def term_at(parts, w, gamma, belief):
    """E|x − x̂|² of a word at a noise level, by quadrature."""
    x = parts["embedding"]()[w]
    found, _ = denoised(parts, alpha(gamma) * x + sigma(gamma) * PLANE, gamma, belief)
    return (WEIGHTS * (x - found).square().sum(-1)).sum()


def enumerated(parts, w, belief, *, nodes=200):
    """The bound on −log p(w): reconstruction, prior, and the integral over time."""
    low, high = parts["levels"].ends()
    x = parts["embedding"]()[w]
    _, p = denoised(parts, alpha(low) * x + sigma(low) * PLANE, low, belief)
    first = -(WEIGHTS * p[:, w].log()).sum()
    prior = 0.5 * (torch.sigmoid(high) - 1 - torch.log(torch.sigmoid(high)) + torch.sigmoid(-high) * x**2).sum()
    at, of = np.polynomial.legendre.leggauss(nodes)  # over γ: the integral does not depend on the schedule's shape
    gammas = low + (high - low) * torch.from_numpy((at + 1) / 2)
    inner = torch.stack([0.5 * torch.exp(-gamma) * term_at(parts, w, gamma, belief) for gamma in gammas])
    return first + prior + (high - low) * (torch.from_numpy(of / 2) * inner).sum()


def by_steps(parts, w, belief, steps):
    """The sum of T steps, ½ (SNR(s) − SNR(t)) E|x − x̂(z_t)|², instead of the integral."""
    gamma = parts["levels"](torch.linspace(0, 1, steps + 1, dtype=torch.float64))
    ratio = torch.exp(-gamma)
    return sum(0.5 * (ratio[i - 1] - ratio[i]) * term_at(parts, w, gamma[i], belief) for i in range(1, steps + 1))


@pytest.mark.slow
def test_the_exponentials_of_the_bounds_sum_to_at_most_one_and_an_exact_denoiser_pays_next_to_nothing():
    parts = world()
    for belief in (WORDS, torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)):
        bounds = torch.stack([enumerated(parts, w, belief) for w in range(3)])
        assert 0.99 < torch.exp(-bounds).sum() <= 1
    exact = torch.stack([enumerated(parts, w, WORDS) for w in range(3)])
    entropy = -(WORDS * WORDS.log()).sum()
    assert 0 < (WORDS * exact).sum() - entropy < 0.001, "only the prior costs"


LINE = torch.linspace(-7, 7, 1401, dtype=torch.float64)  # a world of two words, each one number: −1 and 1
SIGNS, TRUTH = torch.tensor([[-1.0], [1.0]], dtype=torch.float64), torch.tensor([0.7, 0.3], dtype=torch.float64)


def on_a_line(z, gamma, belief):
    return (belief.log() + alpha(gamma) / torch.sigmoid(gamma) * (z[:, None] @ SIGNS.mT)).softmax(-1)


def law(gamma, belief):
    """The words that ancestral steps through these levels give, by transitions of a grid: no random numbers."""
    mass = torch.exp(-(LINE**2) / 2)
    mass = mass / mass.sum()
    for t, s in itertools.pairwise(gamma):
        mean, variance = posterior(LINE[:, None], on_a_line(LINE, t, belief) @ SIGNS, s, t)
        step = torch.exp(-((LINE - mean) ** 2) / (2 * variance))
        mass = mass @ (step / step.sum(1, keepdim=True))
    return mass @ on_a_line(LINE, gamma[-1], belief)


@pytest.mark.slow
@pytest.mark.parametrize("belief", [TRUTH, torch.tensor([0.05, 0.95], dtype=torch.float64)])
def test_the_bound_of_some_steps_is_at_least_minus_log_p_of_the_sampler_with_these_steps(belief):
    gamma = torch.linspace(6, -3, 9, dtype=torch.float64)
    p, weight = law(gamma, belief), OF / (2 * pi) ** 0.5
    for w in range(2):
        x = SIGNS[w]
        prior = 0.5 * (torch.sigmoid(gamma[0]) - 1 - torch.sigmoid(gamma[0]).log() + torch.sigmoid(-gamma[0]))
        far = [
            (weight * (x - on_a_line(alpha(t) * x + sigma(t) * AT, t, belief) @ SIGNS.squeeze(1)) ** 2).sum()
            for t in gamma[:-1]
        ]
        steps = sum(
            0.5 * (torch.exp(-s) - torch.exp(-t)) * one for t, s, one in zip(gamma[:-1], gamma[1:], far, strict=True)
        )
        end = on_a_line(alpha(gamma[-1]) * x + sigma(gamma[-1]) * AT, gamma[-1], belief)[:, w]
        bound = prior + steps - (weight * end.log()).sum()
        assert bound >= -p[w].log()


@pytest.mark.slow
@pytest.mark.parametrize("both", [False, True])
def test_the_estimate_has_the_bound_as_its_mean(both):
    parts = world()
    belief = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    rows = 20_000
    t = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    objective = Plaid(embed=2, ramp=0, both=both)
    for w in range(3):
        noise = Noise(t, torch.zeros(rows, 1, dtype=torch.float64), keys(w, torch.arange(rows)))
        with torch.no_grad():
            found = objective.nats(
                Word(belief), CleanRows(torch.full((rows, 1), w), noise=noise, mask=3, parts=Exact(parts), state={})
            ).bound
        error = found.std() / rows**0.5
        assert abs(found.mean() - enumerated(parts, w, belief)) < 4 * error
        assert error < 0.05


class Exact(dict):
    """Parts whose network input is z itself: the words' network reads nothing else."""

    def __init__(self, parts):
        super().__init__(parts, entry=lambda z, gamma, guess: z)


@pytest.mark.slow
def test_the_integral_is_the_limit_of_the_sum_over_steps():
    parts = world()
    low, high = parts["levels"].ends()
    at, of = np.polynomial.legendre.leggauss(200)
    gammas = low + (high - low) * torch.from_numpy((at + 1) / 2)
    integral = (high - low) * sum(
        weight / 2 * 0.5 * torch.exp(-gamma) * term_at(parts, 0, gamma, WORDS)
        for weight, gamma in zip(of, gammas, strict=True)
    )
    gaps = [float(by_steps(parts, 0, WORDS, steps) - integral) for steps in (32, 64, 128)]
    assert all(gap > 0 for gap in gaps), "fewer steps are a looser bound"
    assert log(gaps[0] / gaps[1]) / log(2) == pytest.approx(1, abs=0.1)
    assert log(gaps[1] / gaps[2]) / log(2) == pytest.approx(1, abs=0.1)


def test_the_posterior_is_bayes_rule():
    """q(z_s | z_t, x) by the product of the two Gaussians q(z_t | z_s) q(z_s | x)."""
    x, z, s, t = (torch.tensor(one, dtype=torch.float64) for one in (0.7, -0.4, -1.0, 2.0))
    ratio = alpha(t) / alpha(s)
    extra = torch.sigmoid(t) - ratio**2 * torch.sigmoid(s)  # variance of z_t given z_s
    precision = 1 / torch.sigmoid(s) + ratio**2 / extra
    mean = (alpha(s) * x / torch.sigmoid(s) + ratio * z / extra) / precision
    found, variance = posterior(z, x, s, t)
    assert float(found) == pytest.approx(float(mean))
    assert float(variance) == pytest.approx(float(1 / precision))


@pytest.mark.slow
def test_deterministic_steps_converge_to_the_law_of_the_data_at_first_order():
    """The map from noise to vectors is exact up to the steps; then the words are drawn."""
    start = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    density = torch.exp(-(start**2) / 2) / (2 * pi) ** 0.5 * (start[1] - start[0])

    def chance(steps):
        gamma, z = torch.linspace(12, -6, steps + 1, dtype=torch.float64), start
        for t, s in itertools.pairwise(gamma):
            z = carried_on(z, on_a_line(z, t, TRUTH) @ SIGNS.squeeze(1), s, t)
        return float(density @ on_a_line(z, gamma[-1], TRUTH)[:, 0])

    errors = [abs(chance(steps) - 0.7) for steps in (25, 50, 100)]
    assert errors[2] < 0.002
    assert log(errors[0] / errors[1]) / log(2) == pytest.approx(1, abs=0.25)
    assert log(errors[1] / errors[2]) / log(2) == pytest.approx(1, abs=0.25)


@pytest.mark.slow
def test_ancestral_steps_converge_to_the_law_of_the_data():
    errors = [
        abs(float(law(torch.linspace(8, -3, steps + 1, dtype=torch.float64), TRUTH)[0]) - 0.7) for steps in (8, 64)
    ]
    assert errors[1] < 0.01
    assert errors[1] < errors[0] / 3


@pytest.mark.slow
def test_a_network_that_cannot_be_given_vectors_is_refused():
    spec = CaduceusSpec(vocab=6, length=4, width=8, blocks=1, equivariant=True, complement="0-3 1-2")
    with pytest.raises(UserError, match="two strands"):
        Denoiser(build(spec), Plaid())
    assert Denoiser(build(replace(spec, equivariant=False)), Plaid()).parts


def test_the_ramp_is_a_share_of_the_run_s_steps_or_their_number():
    """With 500 steps whatever the run, one of 600 steps was still growing its prior when it ended."""
    run = settle_training(Train(steps=600, objective=Plaid()))
    (phase,) = phases(run)
    assert phase.objective == replace(Plaid(), ramp=30.0)
    assert phase.objective.grown({"steps": torch.tensor([15.0])}) == 0.5
    assert phase.objective.grown({"steps": torch.tensor([600.0])}) == 1
    assert Plaid(ramp=500).for_steps(600) == Plaid(ramp=500)
    assert Plaid(ramp=0).for_steps(600).grown({"steps": torch.zeros(1)}) == 1


def test_settings_that_cannot_be_are_refused():
    for bad in ({"embed": 0}, {"conditioned": 1.5}, {"ramp": -1}):
        with pytest.raises(UserError, match=next(iter(bad))):
            replace(Plaid(), **bad)
