"""Plaid: diffusion of normalised embeddings, with a learned noise schedule and a likelihood bound. [Gulrajani 2023]

    bound = reconstruction at t = 0 + KL to the prior at t = 1 + ½ ∫ e^−γ γ' |x − x̂(z_t)|² dt

Three rules make it train. The network's logits get an output prior, the exact posterior of independent tokens. Some
rows are self-conditioned: a first pass without gradient gives x̂, which the second pass is shown. The shape of the
schedule is trained for low variance: it follows the gradient of the squared loss, everything else that of the loss.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
    prior_nats,
    sigma,
    without_mask,
)
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective, steps_of_ramp
from unmask.errors import UserError

CLEANEST, NOISIEST = -3.0, 6.0  # γ at t = 0 and t = 1 before training
HIDDEN, SCALE = 1024, 0.01  # units of the schedule's network, and the scale of its second layer
FEATURES = 64  # sines and cosines of γ
MEMORY = 0.997  # of the running moments that share a batch out
SHARES = 0.02, 0.98  # of the rows that pay the reconstruction, at least and at most
CONDITIONED, ROWS = 0, 1  # uses of random numbers


class UnitEmbedding(nn.Module):
    """A vector of length 1 for every id."""

    rate: ClassVar[float] = 7.0  # factor on the learning rate

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(F.normalize(torch.randn(vocab, width), dim=-1))

    def forward(self) -> Float[Tensor, "v e"]:
        return self.matrix / (self.matrix.norm(dim=-1, keepdim=True) + 1e-8)


class NoiseLevels(nn.Module):
    """γ(t) = γ_0 + (γ_1 − γ_0) u(t): u rises from 0 to 1, a network with positive weights. In float64."""

    rate: ClassVar[float] = 7.0  # factor on the learning rate

    def __init__(self) -> None:
        super().__init__()
        self.W1, self.b1, self.W2 = (nn.Parameter(torch.randn(shape)) for shape in ((HIDDEN, 1), HIDDEN, (1, HIDDEN)))
        self.gamma_0, self.gamma_1 = nn.Parameter(torch.tensor([CLEANEST])), nn.Parameter(torch.tensor([NOISIEST]))

    def shape(self, t: Float[Tensor, " b"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """u(t) and its derivative."""
        rise, height = F.softplus(self.W1.double())[:, 0], SCALE * F.softplus(self.W2.double())[0]
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=t.device)
        bent = torch.tanh((torch.cat((ends, t.double()))[:, None] - 0.5) * rise + self.b1.double())
        # Sums, not products of matrices: the order in which those add depends on where their memory is, and a resumed
        # run must add in the same order.
        inner, values = bent[2:], (bent * height).sum(-1)
        low, high = values[0], values[1]
        return (values[2:] - low) / (high - low), ((1 - inner**2) * (rise * height)).sum(-1) / (high - low)

    def ends(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        return self.gamma_0.double()[0], self.gamma_1.double()[0]

    def forward(self, t: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        first, last = self.ends()
        return first + (last - first) * self.shape(t)[0]


class NoisyEntry(nn.Module):
    """The network's input: the noisy vector, the last estimate of the clean one and the noise level, projected."""

    def __init__(self, embed: int, width: int) -> None:
        super().__init__()
        self.noisy = nn.Linear(embed, width, bias=False)
        self.estimate = nn.Linear(embed, width, bias=False)
        self.level = nn.Linear(FEATURES, width, bias=False)
        nn.init.zeros_(self.estimate.weight)
        nn.init.zeros_(self.level.weight)

    def forward(
        self, z: Float[Tensor, "b l e"], gamma: Float[Tensor, " b"], guess: Float[Tensor, "b l e"] | None
    ) -> Float[Tensor, "b l d"]:
        e = z.shape[-1]
        size = torch.sqrt(torch.sigmoid(-gamma) / e + torch.sigmoid(gamma)).to(z.dtype)
        # Angles reach 900, where float32 is too coarse.
        angles = (
            torch.exp(torch.linspace(-5, 5, FEATURES // 2, dtype=torch.float64, device=z.device)) * gamma[:, None]
        )
        level = self.level(torch.cat((angles.sin(), angles.cos()), -1).to(z.dtype))
        x = self.noisy(z / size[:, None, None]) + level[:, None]
        return x if guess is None else x + self.estimate(guess * math.sqrt(e))


class CutProduct(torch.autograd.Function):
    """rows @ table; the rows that are not kept send no gradient to the table."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, table: Tensor, passing: Tensor) -> Tensor:
        ctx.save_for_backward(rows, table, passing)
        return rows @ table

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, table, passing = ctx.saved_tensors
        to_rows = gradient @ table.mT if ctx.needs_input_grad[0] else None
        to_table = rows.mT @ (gradient * passing[:, None]) if ctx.needs_input_grad[1] else None
        return to_rows, to_table, None


def cut_product(
    rows: Float[Tensor, "b l k"], table: Float[Tensor, "k m"], passing: Bool[Tensor, " b"]
) -> Float[Tensor, "b l m"]:
    """`CutProduct` of whole texts."""
    each = passing[:, None].expand(rows.shape[:2]).flatten()
    products: Tensor = CutProduct.apply(rows.flatten(0, 1), table, each.to(rows.dtype))
    return products.unflatten(0, rows.shape[:2])


def cut_gradient(x: Float[Tensor, "b *rest"], passing: Bool[Tensor, " b"]) -> Float[Tensor, "b *rest"]:
    """The same numbers; no gradient passes through the rows that are not kept."""
    return torch.where(passing.view(-1, *[1] * (x.dim() - 1)), x, x.detach())


class BoundTerms(NamedTuple):
    """The parts of the bound, in nats per token; a row pays the reconstruction (t = 0) or the diffusion."""

    reconstruction: Float[Tensor, "b l"]
    diffusion: Float[Tensor, "b l"]
    prior: Float[Tensor, "b l"]
    logits: Float[Tensor, "b l v"]
    x: Float[Tensor, "b l e"]  # x̂
    guess: Float[Tensor, "b l e"]  # what the network was shown of x̂


class NoisyTexts(NamedTuple):
    """Noisy vectors of some rows, with what turns them into logits."""

    z: Float[Tensor, "b l e"]
    gamma: Float[Tensor, " b"]
    embedding: Float[Tensor, "v e"]
    ramp: float  # weight of the output prior

    def with_prior(self, logits: Float[Tensor, "b l v"], passing: Bool[Tensor, " b"]) -> Float[Tensor, "b l v"]:
        """Logits + (α/σ²) z·E_v: with log p_v as logits, the exact posterior of independent tokens."""
        strength = (self.ramp * alpha(self.gamma) / torch.sigmoid(self.gamma)).to(self.z.dtype)
        return logits + cut_product(strength[:, None, None] * self.z, self.embedding.mT, passing).to(logits.dtype)

    def logits(
        self,
        network: VectorNetwork,
        guess: Float[Tensor, "b l e"] | None,
        clean: CleanRows,
        passing: Bool[Tensor, " b"],
    ) -> Float[Tensor, "b l v"]:
        """The network's logits, with the output prior, without the mask."""
        output = network.head(network.trunk(clean.parts["entry"](self.z, self.gamma, guess)))
        return without_mask(self.with_prior(output, passing), clean.mask)


class Draw(NamedTuple):
    """What is drawn for each row: its time, its noise, and what it pays."""

    t: Float[Tensor, " b"]
    normal: Float[Tensor, "b l e"]
    first: Bool[Tensor, " b"]  # pays the reconstruction at t = 0; the others pay the diffusion at their t
    conditioned: Bool[Tensor, " b"]  # sees an estimate of its clean vectors, by a first pass


def terms(network: VectorNetwork, clean: CleanRows, draw: Draw, *, ramp: float) -> BoundTerms:
    """Every row's terms. The gradients of self-conditioned rows reach the network alone, neither the embeddings nor
    the schedule."""
    x0, free, first, passing = clean.x0, clean.free, draw.first, ~draw.conditioned
    levels = cast(NoiseLevels, clean.parts["levels"])
    embedding: Tensor = clean.parts["embedding"]()
    (low, high), (u, slope) = levels.ends(), levels.shape(torch.where(first, 0.0, draw.t.double()))
    factor: list[Tensor] = []
    for one in (u, slope):
        if one.requires_grad:  # the shape of the schedule minimises the square of the loss
            one.register_hook(lambda gradient: gradient * factor[0])
    gamma, rate = cut_gradient(low + (high - low) * u, passing), cut_gradient((high - low) * slope, passing)
    x = cut_gradient(embedding[x0], passing)
    signal = x if network.unseen is None else x.masked_fill(network.unseen[:, None], 0.0)
    wide = gamma[:, None, None]
    z = (alpha(wide) * signal + sigma(wide) * draw.normal).to(x.dtype)
    noisy = NoisyTexts(z, gamma, embedding, ramp)
    guess = first_guess(network, noisy, clean, draw.conditioned)
    logits = noisy.logits(network, guess, clean, passing)
    estimate = cut_product(logits.softmax(-1), embedding.to(logits.dtype), passing)
    far = (x.double() - estimate.double()).square().sum(-1)
    diffusion = torch.where(free & ~first[:, None], (0.5 * torch.exp(-gamma) * rate)[:, None] * far, 0.0)
    own = diffusion.detach().sum(1) / free.sum(1).clamp(min=1)
    factor.append(torch.where(first, 1.0, 2 * own))
    ce = x0.new_zeros(x0.shape, dtype=torch.float64)
    if bool(first.any()):
        paid = F.cross_entropy(logits[first].flatten(0, 1), x0[first].flatten(), reduction="none").double()
        ce = ce.index_put((first.nonzero().squeeze(-1),), paid.view(-1, x0.shape[1]))
    prior = prior_nats(x, cut_gradient(high.expand(len(x0)), passing)[:, None, None])
    return BoundTerms(torch.where(free, ce, 0.0), diffusion, torch.where(free, prior, 0.0), logits, estimate, guess)


@torch.no_grad()
def first_guess(
    network: VectorNetwork, noisy: NoisyTexts, clean: CleanRows, conditioned: Bool[Tensor, " b"]
) -> Float[Tensor, "b l e"]:
    """x̂ of the self-conditioned rows by a pass without an estimate; 0 in the others."""
    rows, z, embedding = conditioned.nonzero().squeeze(-1), noisy.z, noisy.embedding
    if not len(rows):
        rows = rows.new_zeros(1)  # the processes of a sharded network must call it equally often
    some = noisy._replace(z=z[rows], gamma=noisy.gamma[rows])
    logits = some.logits(network.some(rows), None, clean, torch.ones_like(conditioned[rows]))
    estimate = logits.softmax(-1) @ embedding.to(logits.dtype)
    return torch.where(conditioned[:, None, None], torch.zeros_like(z).index_put((rows,), estimate.to(z.dtype)), 0.0)


@OBJECTIVES.register("plaid", "Plaid: continuous diffusion of embeddings, with a learned schedule")
@dataclass(frozen=True)
class Plaid(Continuous):
    """The Plaid objective: nats of a bound in continuous time."""

    facts: ClassVar[Facts] = Facts(
        gives=frozenset({"vectors", "embeddings"}),
        asked=1.25,
        sampler="gaussian",
        unused=frozenset({"embedding"}),
    )
    means: ClassVar[str] = "upper bound on -log p, continuous time and space, self-conditioned"

    embed: int = 16  # numbers of a token's vector
    conditioned: float = 0.25  # share of rows that are self-conditioned in training; all are in evaluation
    ramp: float = (
        0.05  # share of the steps over which the output prior grows to its full weight; from 1 on: their number
    )
    both: bool = False  # every row pays reconstruction and diffusion, by two passes: as in evaluation

    def __post_init__(self) -> None:
        check_embed(self.embed)
        if not 0 <= self.conditioned <= 1:
            raise UserError(f"conditioned must be a share from 0 to 1; saw {self.conditioned}.")
        if self.ramp < 0:
            raise UserError(f"ramp must be 0 (no ramp), a share of the steps or their number; saw {self.ramp}.")

    def for_steps(self, steps: int) -> "Plaid":
        return replace(self, ramp=steps_of_ramp(self.ramp, steps))

    def estimators(self) -> Mapping[str, Objective]:
        return {self.name: replace(self, conditioned=1.0, both=True)}

    def parts(self, *, vocab: int, width: int) -> dict[str, nn.Module]:
        return {
            "embedding": UnitEmbedding(vocab, self.embed),
            "levels": NoiseLevels(),
            "entry": NoisyEntry(self.embed, width),
        }

    def state(self) -> dict[str, Tensor]:
        """Steps done, and the running mean and mean square of both losses, with their common weight."""
        return {"steps": torch.zeros(1), "moments": torch.zeros(4), "weight": torch.zeros(1)}

    def advance(self, state: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rows = seen["rows"].repeat_interleave(2)
        now = torch.where(rows > 0, seen["moments"] / rows.clamp(min=1), known_moments(state))
        moments = MEMORY * state["moments"] + (1 - MEMORY) * now.to(state["moments"])
        weight = MEMORY * state["weight"] + (1 - MEMORY)
        return {"steps": state["steps"] + 1, "moments": moments, "weight": weight}

    def share(self, state: Mapping[str, Tensor]) -> float:
        """The share of rows that pay the reconstruction: by the standard deviations of both losses."""
        mean_r, square_r, mean_d, square_d = known_moments(state).double().tolist()
        std_r, std_d = math.sqrt(max(square_r - mean_r**2, 0.0)), math.sqrt(max(square_d - mean_d**2, 0.0))
        share = std_r / (std_r + std_d) if std_r + std_d > 0 else 0.5
        return min(max(share, SHARES[0]), SHARES[1])

    def grown(self, state: Mapping[str, Tensor]) -> float:
        """The weight of the output prior so far; it stays where training left it."""
        return min(1.0, float(state["steps"][0]) / self.ramp) if self.ramp else 1.0

    def nats(self, network: VectorNetwork, clean: CleanRows) -> Nats:
        """Nats per token. A row's time says whether it pays the reconstruction, or where in the diffusion it is."""
        noise, state = clean.noise, clean.state or self.state()
        share, ramp = self.share(state), self.grown(state)
        conditioned = noise.uniform(1, CONDITIONED)[:, 0] < self.conditioned
        normal = noise.normal(self.embed, ROWS)
        if self.both:
            every = torch.ones_like(conditioned)
            first = Draw(noise.t, noise.normal(self.embed, ROWS + 1), every, conditioned)
            text = terms(network, clean, first, ramp=ramp)
            noisy = terms(network, clean, Draw(noise.t, normal, ~every, conditioned), ramp=ramp)
            bound = text.reconstruction + noisy.diffusion + noisy.prior
            return Nats(bound, bound)
        draw = Draw(((noise.t - share) / (1 - share)).clamp(0, 1), normal, noise.t < share, conditioned)
        parts = terms(network, clean, draw, ramp=ramp)
        bound = parts.reconstruction / share + parts.diffusion / (1 - share) + parts.prior
        return Nats(bound, bound, self.moments(parts, draw.first, clean.free))

    def moments(self, terms: BoundTerms, first: Bool[Tensor, " b"], free: Bool[Tensor, "b l"]) -> dict[str, Tensor]:
        """Rows of both kinds, and sums of their nats per token and of its square."""
        each = torch.where(first, terms.reconstruction.sum(1), terms.diffusion.sum(1)) / free.sum(1).clamp(min=1)
        each = each.detach()
        kinds = torch.stack((first, ~first)).to(each)
        moments = torch.stack(((kinds * each).sum(1), (kinds * each**2).sum(1)), -1).flatten()
        return {"rows": kinds.sum(1).float(), "moments": moments.float()}

    def features(self, vocab: int) -> int:
        return self.embed

    def path(self, steps: int, parts: Parts) -> Path:
        """Levels at evenly spaced times, from 1 to 0; the last call, at t = 0, gives the tokens."""
        t = torch.linspace(1, 0, steps + 1, dtype=torch.float64, device=next(parts["levels"].parameters()).device)
        gamma = parts["levels"](t)
        return Path(torch.cat((gamma, gamma[-1:])), gamma)

    def clean(self, tokens: Int[Tensor, "*shape"], parts: Parts) -> Float[Tensor, "*shape e"]:
        vectors: Tensor = parts["embedding"]()[tokens]
        return vectors

    def entered(self, network: Any, noisy: NoisyWindow, parts: Parts) -> Float[Tensor, "b l d"]:
        vectors: Tensor = parts["entry"](noisy.z, noisy.gamma.expand(len(noisy.z)), noisy.guess)
        return vectors

    def meaning(
        self, output: Float[Tensor, "b s _"], noisy: NoisyWindow, parts: Parts, state: State, *, mask: int
    ) -> VectorPrediction:
        z, embedding = noisy.z, parts["embedding"]()
        texts = NoisyTexts(z, noisy.gamma.expand(len(z)), embedding, self.grown(state))
        logits = without_mask(texts.with_prior(output, torch.ones(len(z), dtype=torch.bool, device=z.device)), mask)
        return VectorPrediction(logits, (logits.softmax(-1) @ embedding.to(logits.dtype)).to(z.dtype))


def known_moments(state: Mapping[str, Tensor]) -> Tensor:
    """Mean and mean square of the reconstruction's and the diffusion's loss so far, without the bias of the start."""
    return torch.where(state["weight"] > 0, state["moments"] / state["weight"].clamp(min=1e-9), 0.0)
