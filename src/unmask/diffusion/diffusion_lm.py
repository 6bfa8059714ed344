"""Diffusion-LM: diffusion of learned embeddings in T steps, which end by rounding to words. [Li 2022]

    w → x_0 ~ N(E_w, σ_0²) → x_1 → .. → x_T,    the network predicts x_0,    p(w | x_0) = softmax(x_0 Eᵀ + b)

Three numbers belong to it. The loss that trains it has the weights of no bound. The number that its code prints is a
bound, but with x̂_0 rounded to an embedding no model can bring it below ½ d (1 − SNR_T/SNR_0) nats per token, d the
numbers of a vector: it compares x̂_0 with the noisy x_0. Any q gives a bound on −log p of the same sampler, so ours
has the noisy texts around the embedding itself, and an x_0 ~ N(E_w, v) of its own:

    Σ_i ½ (SNR_{i−1} − SNR_i) |E_w − x̂_0(x_i)|² + |E_w − x̂_0(x_1)|²/2v − E log p(w | x_0) + KL(q(x_T | w) || N(0, 1))
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.continuous import (
    Continuous,
    NoisyWindow,
    Parts,
    Path,
    State,
    VectorNetwork,
    VectorPrediction,
    alpha,
    check_embed,
    forward_variance,
    level_of,
    posterior_variance,
    prior_nats,
    sigma,
    without_mask,
)
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.rows import row_nats
from unmask.diffusion.times import check_total, steps
from unmask.errors import UserError

CAP = 0.999  # largest share of the signal that a step takes away
TIME_SCALE = 1000.0  # the network is told the time on a scale of this length
SINES, INNER = 128, 512  # features of the time, and of the layer after them
EVEN = 0.5  # share of the draws of steps that is uniform
CLEAN, NOISY, FIRST = 0, 1, 2  # uses of random numbers

Schedule = Literal["sqrt", "cosine"]


def share_at(name: Schedule, u: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """ā(u), the share of the signal at time u in [0, 1]. [Li 2022: sqrt; Nichol 2021: cosine]"""
    if name == "sqrt":
        return 1 - torch.sqrt(u + 1e-4)
    return torch.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2


@lru_cache(maxsize=64)
def shares(name: Schedule, total: int) -> Float[Tensor, " t"]:
    """ᾱ_i of the steps i = 0 .. T − 1: step 0 has already some noise, and no step takes more than `CAP`."""
    at = share_at(name, torch.arange(total + 1, dtype=torch.float64) / total)
    return torch.cumprod(1 - (1 - at[1:] / at[:-1]).clamp(max=CAP), 0)


class RoundedEmbedding(nn.Module):
    """A vector for every id, and the bias of the rounding."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(vocab, width))
        self.bias = nn.Parameter(torch.zeros(vocab))

    def rounding(self, x: Float[Tensor, "*shape e"]) -> Float[Tensor, "*shape v"]:
        """Logits of p(w | x_0)."""
        return F.linear(x, self.matrix, self.bias)

    @torch.no_grad()
    def nearest(self, x: Float[Tensor, "*shape e"], mask: int) -> Float[Tensor, "*shape e"]:
        """The nearest vector of a token, by distance: without the bias."""
        near = F.linear(x, self.matrix, -self.matrix.square().sum(1) / 2)
        return self.matrix[without_mask(near, mask).argmax(-1)]


class TimedEntry(nn.Module):
    """From noisy vectors and the time to the network's input."""

    def __init__(self, embed: int, width: int) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Linear(embed, width), nn.Tanh(), nn.Linear(width, width))
        self.time = nn.Sequential(nn.Linear(SINES, INNER), nn.SiLU(), nn.Linear(INNER, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Float[Tensor, "b l e"], level: Float[Tensor, " b"]) -> Float[Tensor, "b l d"]:
        half = torch.arange(SINES // 2, dtype=torch.float64, device=x.device)
        angles = level.double()[:, None] * torch.exp(-math.log(10000) * half / (SINES // 2))
        time = self.time(torch.cat((angles.cos(), angles.sin()), -1).to(x.dtype))
        vectors: Tensor = self.norm(self.up(x) + time[:, None])
        return vectors


def embedding_of(parts: Parts) -> RoundedEmbedding:
    embedding = parts["embedding"]
    assert isinstance(embedding, RoundedEmbedding)
    return embedding


def rounding_nats(x: Float[Tensor, "b l e"], clean: CleanRows) -> Float[Tensor, "b l"]:
    """−log p(w | x_0 = x) of every token."""
    logits = embedding_of(clean.parts).rounding(x.flatten(0, 1))
    return row_nats(logits, clean.x0.flatten(), mask=clean.mask).view(clean.x0.shape)


class EstimateTerms(NamedTuple):
    """The estimate of x_0 at one step of each row, and what it is compared with."""

    x: Float[Tensor, "b l e"]  # x_0, around the embedding
    mean: Float[Tensor, "b l e"]  # the embedding
    estimate: Float[Tensor, "b l e"]  # x̂_0
    used: Float[Tensor, "b l e"]  # x̂_0 as the sampler uses it: rounded to an embedding, or not


def squared_distance(a: Float[Tensor, "b l e"], b: Float[Tensor, "b l e"]) -> Float[Tensor, "b l"]:
    """|a − b|², in float64."""
    return (a.double() - b.double()).square().sum(-1)


@OBJECTIVES.register("diffusion-lm", "Diffusion-LM: continuous diffusion of embeddings in T steps, with rounding")
@dataclass(frozen=True)
class DiffusionLM(Continuous):
    """The Diffusion-LM objective: its own training loss, and a bound that is one."""

    facts: ClassVar[Facts] = Facts(
        gives=frozenset({"vectors", "embeddings"}),
        asked=0.0,
        sampler="gaussian",
        unused=frozenset({"embedding", "head"}),
    )

    steps: int = 2000  # T, the number of steps
    noise: Schedule = "sqrt"  # share of the signal over time: sqrt (the paper), cosine (as it was run on LM1B)
    embed: int = 16  # numbers of a token's vector
    clamp: bool = True  # round estimates of x_0 to the nearest embedding, in the sampler and in its bound
    clamp_above: float = 0.0  # only where signal to noise is above this (no word is near in noisier steps); 0: always
    variance: Literal["small", "large"] = "small"  # of a sampling step: that of the posterior, or of the forward step
    both: bool = False  # the bound, a step and the first one by two passes, in place of the training loss: evaluation

    def __post_init__(self) -> None:
        check_total(self.steps)
        check_embed(self.embed)
        if not self.clamp_above >= 0:
            raise UserError(f"clamp-above, a ratio of signal to noise, must be 0 or more, not {self.clamp_above}.")

    @property
    def means(self) -> str:
        return f"upper bound on -log p, Diffusion-LM with {self.steps} steps; the loss that trains it is none"

    def estimators(self) -> Mapping[str, Objective]:
        return {self.name: replace(self, both=True), "printed": Printed(self)}

    def parts(self, *, vocab: int, width: int) -> dict[str, nn.Module]:
        return {
            "embedding": RoundedEmbedding(vocab, self.embed),
            "entry": TimedEntry(self.embed, width),
            "exit": nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, self.embed)),
        }

    def levels(self, device: torch.device) -> Float[Tensor, " t"]:
        """γ of the steps 0 .. T − 1, and before them that of x_0: no noise."""
        return level_of(torch.cat((torch.ones(1, dtype=torch.float64), shares(self.noise, self.steps)))).to(device)

    def spread(self, gamma_s: Float[Tensor, "..."], gamma_t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The variance of a sampling step."""
        return (posterior_variance if self.variance == "small" else forward_variance)(gamma_s, gamma_t)

    def first_spread(self, levels: Float[Tensor, " t"]) -> Float[Tensor, ""]:
        """The variance of the step to x_0: the posterior has none there, so that of the step before it is taken."""
        return posterior_variance(levels[1], levels[2]) if self.steps > 1 else torch.sigmoid(levels[1])

    def densities(self, parts: Parts, *, noise_of_x0: bool = False) -> Float[Tensor, " t"]:
        """The probability of each step 1 .. T − 1 in an estimate: its share of the bound, if vectors were Gaussian.

        Then a step pays what it tells of the vector, Σ ½ log(1 + λ SNR) over the variances λ of the vectors; here
        with their mean. `noise_of_x0` adds what it pays for the noise of x_0, ½ σ_0² (SNR_{i−1} − SNR_i) per number.
        Half of the draws are uniform: words are not Gaussian, and no step then weighs more than twice T.
        """
        matrix = embedding_of(parts).matrix.detach().double()
        spread = matrix.var(0, correction=0).mean() if len(matrix) > 1 else matrix.new_ones(())
        levels = self.levels(matrix.device)[1:]
        ratio = torch.exp(-levels)
        nats = torch.log1p(spread * ratio) + (torch.sigmoid(levels[0]) * ratio if noise_of_x0 else 0.0)
        share = (nats[:-1] - nats[1:]).clamp(min=0)
        return (1 - EVEN) * share / share.sum().clamp(min=1e-300) + EVEN / len(share)

    def drawn(
        self, t: Float[Tensor, " b"], parts: Parts, *, noise_of_x0: bool = False
    ) -> tuple[Int[Tensor, " b"], Float[Tensor, "b 1"]]:
        """A step i ≥ 1 for each uniform, and its weight: one over its probability."""
        density = self.densities(parts, noise_of_x0=noise_of_x0)
        index = torch.searchsorted(density.cumsum(0), t.double(), right=True).clamp(max=len(density) - 1)
        return index + 1, 1 / density[index][:, None]

    def terms(
        self,
        network: VectorNetwork,
        clean: CleanRows,
        index: Int[Tensor, " b"],
        *,
        noise_t: Float[Tensor, "b l e"],
        noise_0: Float[Tensor, "b l e"] | None = None,
    ) -> EstimateTerms:
        """The network's estimate of x_0 at step `index` of each row, by the noise of x_t and that of x_0.

        Without the noise of x_0, as in the bound, x_t is around the embedding itself.
        """
        levels, table, parts = self.levels(clean.x0.device), embedding_of(clean.parts), clean.parts
        mean = table.matrix[clean.x0]
        x = mean if noise_0 is None else mean + (sigma(levels[1]) * noise_0).to(mean.dtype)
        signal = x if network.unseen is None else x.masked_fill(network.unseen[:, None], 0.0)
        gamma = levels[index + 1][:, None, None]
        x_t = (alpha(gamma) * signal + sigma(gamma) * noise_t).to(mean.dtype)
        estimate = parts["exit"](network.trunk(parts["entry"](x_t, index * (TIME_SCALE / self.steps))))
        return EstimateTerms(x, mean, estimate, self.used(estimate, gamma, table, mask=clean.mask))

    def used(
        self, estimate: Float[Tensor, "b l e"], gamma: Float[Tensor, "..."], table: RoundedEmbedding, *, mask: int
    ) -> Float[Tensor, "b l e"]:
        """x̂_0 as the sampler uses it at the noise level γ."""
        if not self.clamp:
            return estimate
        near = table.nearest(estimate.detach(), mask)
        return torch.where(torch.exp(-gamma) > self.clamp_above, near, estimate) if self.clamp_above else near

    def step_nats(self, terms: EstimateTerms, index: Int[Tensor, " b"]) -> Float[Tensor, "b l"]:
        """KL(q(x_{i−1} | x_i, x_0) || p) of a step i ≥ 1, each position: ½ (SNR_{i−1} − SNR_i) |x_0 − x̂_0|²."""
        levels = self.levels(index.device)
        s, t = (levels[(index + i).clamp(min=1)][:, None] for i in (0, 1))
        own, wide = posterior_variance(s, t), self.spread(s, t)
        drift = (alpha(s) * -torch.expm1(s - t)) ** 2 * squared_distance(terms.x, terms.used)
        extra = terms.x.shape[-1] * (torch.log(wide / own) - 1 + own / wide)
        return 0.5 * (extra + drift / wide)

    def first_nats(self, terms: EstimateTerms) -> Float[Tensor, "b l"]:
        """KL(N(E_w, v) || p(x_0 | x_1)), where p has the variance v too."""
        return squared_distance(terms.mean, terms.used) / (2 * self.first_spread(self.levels(terms.mean.device)))

    def first_printed(self, terms: EstimateTerms) -> Float[Tensor, "b l"]:
        """KL(q(x_0 | w) || p(x_0 | x_1)), as if x_0 were independent of x_1: as the original code computes it."""
        levels = self.levels(terms.x.device)
        v, own, e = self.first_spread(levels), torch.sigmoid(levels[1]), terms.x.shape[-1]
        return 0.5 * (e * (torch.log(v / own) - 1 + own / v) + squared_distance(terms.mean, terms.used) / v)

    def ends(self, x: Float[Tensor, "b l e"], last: Float[Tensor, "b l e"], clean: CleanRows) -> Float[Tensor, "b l"]:
        """The KL of x_T, made from x, to the prior, and −log p(w | x_0) at x_0 = `last`."""
        return prior_nats(x, self.levels(x.device)[-1]) + rounding_nats(last, clean)

    def loss(self, terms: EstimateTerms, index: Int[Tensor, " b"], clean: CleanRows) -> Float[Tensor, "b l"]:
        """The published loss: mean squared error per number, rounding per token, and the mean of x_T squared."""
        target = torch.where((index == 0)[:, None, None], terms.mean, terms.x)
        last = torch.sigmoid(-self.levels(index.device)[-1]) * terms.x.square().mean(-1)
        return (target - terms.estimate).square().mean(-1) + rounding_nats(terms.x, clean) + last

    def nats(self, network: VectorNetwork, clean: CleanRows) -> Nats:
        """Nats per token: in training the published loss, at a uniform step; else the bound.

        In training the reported number has the terms of the bound at the inputs of the loss, where x_t has the noise
        of x_0 too, so it is near the bound and not the bound. Validation and evaluation report the bound.
        """
        noise = clean.noise
        noise_0, noise_t = noise.normal(self.embed, CLEAN), noise.normal(self.embed, NOISY)
        if self.both:
            index = torch.zeros_like(clean.x0[:, 0])
            terms = self.terms(network, clean, index, noise_t=noise.normal(self.embed, FIRST))
            paid = self.first_nats(terms)
            if self.steps > 1:
                index, weight = self.drawn(noise.t, clean.parts)
                terms = self.terms(network, clean, index, noise_t=noise_t)
                paid = paid + weight * self.step_nats(terms, index)
        else:
            index = steps(noise.t, total=self.steps) - 1
            terms = self.terms(network, clean, index, noise_t=noise_t, noise_0=noise_0)
            near = terms._replace(x=terms.mean)
            paid = torch.where((index == 0)[:, None], self.first_nats(near), self.step_nats(near, index)) * self.steps
        width = self.first_spread(self.levels(index.device)).sqrt()
        last = terms.mean + (width * noise_0).to(terms.mean.dtype)
        bound = paid + self.ends(terms.mean, last, clean)
        loss = bound if self.both else self.loss(terms, index, clean)
        return Nats(torch.where(clean.free, loss, 0.0), torch.where(clean.free, bound, 0.0).detach())

    def features(self, vocab: int) -> int:
        return self.embed

    def path(self, steps: int, parts: Parts) -> Path:
        """The levels of the trained process, or of some of its steps, evenly spaced."""
        if steps > self.steps:
            raise UserError(f"this model has {self.steps} steps of noise: ask for at most so many; saw {steps}.")
        levels = self.levels(embedding_of(parts).matrix.device)
        index = torch.linspace(self.steps - 1, 0, steps, dtype=torch.float64, device=levels.device).round().long()
        return Path(torch.cat((levels[index + 1], levels[:1])), index * (TIME_SCALE / self.steps))

    def clean(self, tokens: Int[Tensor, "*shape"], parts: Parts) -> Float[Tensor, "*shape e"]:
        return embedding_of(parts).matrix[tokens]

    def entered(self, network: Any, noisy: NoisyWindow, parts: Parts) -> Float[Tensor, "b l d"]:
        vectors: Tensor = parts["entry"](noisy.z, noisy.level.expand(len(noisy.z)))
        return vectors

    def meaning(
        self, output: Float[Tensor, "b s _"], noisy: NoisyWindow, parts: Parts, state: State, *, mask: int
    ) -> VectorPrediction:
        table, x = embedding_of(parts), parts["exit"](output)
        x = self.used(x, noisy.gamma, table, mask=mask)
        return VectorPrediction(without_mask(table.rounding(x), mask), x, wide=self.variance == "large")

    def ended(
        self, reading: VectorPrediction, normal: Float[Tensor, "b s e"], parts: Parts, *, mask: int
    ) -> VectorPrediction:
        """x_0 is drawn too, and the tokens given it."""
        assert reading.x is not None
        width = self.first_spread(self.levels(normal.device)).sqrt()
        x = reading.x + (width * normal).to(reading.x.dtype)
        return reading._replace(logits=without_mask(embedding_of(parts).rounding(x), mask), x=x)


@dataclass(frozen=True)
class Printed(Objective):
    """The number that Diffusion-LM's code prints as its bound: for comparison."""

    facts: ClassVar[Facts] = DiffusionLM.facts
    name: ClassVar[str] = "printed"

    model: DiffusionLM

    @property
    def means(self) -> str:
        return f"upper bound on -log p as Diffusion-LM's code prints it, {self.model.steps} steps: looser than ours"

    def nats(self, network: VectorNetwork, clean: CleanRows) -> Nats:
        """The terms of one step and of the first, and the two ends; x_0 is noisy in all of them."""
        model, noise = self.model, clean.noise
        noise_0, noise_t, first = (noise.normal(model.embed, use) for use in (CLEAN, NOISY, FIRST))
        terms = model.terms(network, clean, torch.zeros_like(clean.x0[:, 0]), noise_t=first, noise_0=noise_0)
        paid = model.first_printed(terms) + model.ends(terms.x, terms.x, clean)
        if model.steps > 1:
            index, weight = model.drawn(noise.t, clean.parts, noise_of_x0=True)
            terms = model.terms(network, clean, index, noise_t=noise_t, noise_0=noise_0)
            paid = paid + weight * model.step_nats(terms, index)
        paid = torch.where(clean.free, paid, 0.0)
        return Nats(paid, paid)
