"""SSD-LM: diffusion on the simplex of a vocabulary, a block of text at a time, given the text before it. [Han 2022]

A token w is the corner w' = 2e_w − 1 of a cube, times K; x_t = √ᾱ_t w' + √(1 − ᾱ_t) z, in units of K. The network
reads softmax(K x_t) as a mixture of embeddings. Its sampler draws a corner from the network's prediction and adds
fresh noise: a step is a mixture Σ_v p_v(x_t) N(√ᾱ_s w'_v, 1 − ᾱ_s), not the posterior of DDPM. Its bound:

    −log p(block | before) ≤ Σ_{t ≥ 2} E KL(N_w || Σ_v p_v(x_t) N_v at t − 1) + E[−log p_w(x_1)]

Each KL is at most −log p_w(x_t): T times the training cross-entropy is a bound too, and a very loose one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
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
    level_of,
    sigma,
    without_mask,
)
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.rows import forbid, row_nats, spread
from unmask.diffusion.times import check_total, steps
from unmask.errors import UserError
from unmask.random import Noise, gaussians

OFFSET = 1e-4  # of the cosine schedule
COPIES = 4  # tensors of a block's simplex that a step holds at once
BLOCK, SHIFT = 0, 1  # uses of uniform numbers
NOISY, LESS_NOISY = 2, 3  # uses of normal numbers


def cosine_share(u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """ᾱ at time u = t/T: cos² of an angle up to π/2, divided by that at 0, so that it begins at 1 exactly."""
    angle = (torch.stack((u, torch.zeros_like(u))) + OFFSET) / (1 + OFFSET) * (math.pi / 2)
    now, first = (torch.cos(angle) ** 2).unbind()
    return now / first


def levels(t: Int[Tensor, "*n"], total: int) -> Float[Tensor, "*n"]:
    """γ of step t of T."""
    return level_of(cosine_share(t.double() / total))


def add_noise_(
    normal: Float[Tensor, "b s v"], tokens: Int[Tensor, "b s"], gamma: Float[Tensor, " b"]
) -> Float[Tensor, "b s v"]:
    """√ᾱ w' + √(1 − ᾱ) z, written over the normal numbers z."""
    signal, noise = (one(gamma).to(normal.dtype)[:, None, None] for one in (alpha, sigma))
    up = (2 * signal).expand(*tokens.shape, 1)
    return normal.mul_(noise).sub_(signal).scatter_add_(-1, tokens[..., None], up)


def simplex_step_nats(
    log_p: Float[Tensor, "n v"], x_s: Float[Tensor, "n v"], true: Int[Tensor, " n"], gamma_s: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """log N_w(x_s) − log Σ_v p_v N_v(x_s), unbiased for the KL of a step by one draw of x_s ~ N_w.

    N_v and N_w differ in two coordinates: log N_v − log N_w = 2√ᾱ/(1 − ᾱ) (x_v − x_w).
    """
    weight = (2 * alpha(gamma_s) / torch.sigmoid(gamma_s)).to(x_s.dtype)[:, None]
    ratio = weight * (x_s - x_s.gather(1, true[:, None]))
    return -torch.logsumexp(log_p + ratio, -1)


class Simplex(nn.Module):
    """A vector for every id, of which a distribution over ids is a mixture."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.empty(vocab, width).uniform_(-1, 1) / math.sqrt(width))

    def forward(self, x: Float[Tensor, "b s v"]) -> Float[Tensor, "b s d"]:
        return torch.softmax(x, -1) @ self.matrix


class BlockColumns(NamedTuple):
    """One block of each row: its columns, as indices into the row, and which of them it really has."""

    columns: Int[Tensor, "b s"]
    real: Bool[Tensor, "b s"]
    of: Int[Tensor, " b"]  # blocks of the row


def chosen_block(
    free: Bool[Tensor, "b l"], size: int, which: Float[Tensor, " b"], shift: Int[Tensor, " b"]
) -> BlockColumns:
    """A random block of each row. The first has `shift` tokens (0: a whole block), the others `size`."""
    place, lead = torch.arange(free.shape[1], device=free.device), shift > 0
    end = torch.where(free, place + 1, 1).amax(1)
    begin = torch.minimum(torch.where(free, place, free.shape[1]).amin(1), end - 1)
    count = (-(-(end - begin - shift) // size)).clamp(min=0) + lead.long()
    number = torch.minimum((which * count).long(), count - 1)
    short = lead & (number == 0)
    start = begin + torch.where(short, 0, shift + (number - lead.long()) * size)
    stop = torch.minimum(start + torch.where(short, shift, size), end)
    columns = start[:, None] + torch.arange(size, device=free.device)
    return BlockColumns(columns.clamp(max=free.shape[1] - 1), columns < stop[:, None], count)


def matrix_of(parts: Parts) -> Float[Tensor, "v d"]:
    """The embeddings of which an input on the simplex is a mixture."""
    simplex = parts["simplex"]
    assert isinstance(simplex, Simplex)
    return simplex.matrix


@OBJECTIVES.register("ssd-lm", "SSD-LM: diffusion on the simplex, block after block")
@dataclass(frozen=True)
class SSDLM(Continuous):
    """The SSD-LM objective: the cross-entropy of a noisy block after clean text, and the bound of its loop."""

    facts: ClassVar[Facts] = Facts(
        infills=False,
        gives=frozenset({"vectors", "simplex", "blocks"}),
        asked=0.25,
        sampler="simplex",
    )

    steps: int = 1000  # T, the number of steps; the paper trains with 5000
    block: int = 25  # tokens that are denoised at once, given the text before them
    scale: float = 5.0  # K: a token is K at its id and −K elsewhere
    random: bool = True  # contexts of any length, as in training; False: whole blocks from the beginning

    def __post_init__(self) -> None:
        check_total(self.steps)
        if self.block < 1:
            raise UserError(f"a block needs at least one token; saw {self.block}.")
        if not self.scale > 0:
            raise UserError(f"scale must be above 0: the size of a token's corner; saw {self.scale}.")

    @property
    def means(self) -> str:
        return f"upper bound on -log p of its own sampling loop with {self.steps} steps, blocks of {self.block}"

    def estimators(self) -> Mapping[str, Objective]:
        precise = replace(self, random=False)
        return {self.name: precise, "cross-entropy": CrossEntropy(precise)}

    def parts(self, *, vocab: int, width: int) -> dict[str, nn.Module]:
        return {"simplex": Simplex(vocab, width), "time": nn.Linear(1, width)}

    def room(self, *, rows: int, vocab: int) -> int:
        return COPIES * 4 * rows * self.block * vocab

    def predicted(
        self,
        network: VectorNetwork,
        x0: Int[Tensor, "b l"],
        span: BlockColumns,
        x_t: Float[Tensor, "b s v"],
        level: Float[Tensor, " b"],
        parts: Parts,
    ) -> Float[Tensor, "n v"]:
        """The network's logits at the real columns of the blocks, row by row; it sees the text before, as it is."""
        reach = span.columns.masked_fill(~span.real, 0).amax(1) + 1
        width = int(reach.max())
        before = network.embed(x0[:, :width])
        noisy = self.vectors(x_t, level, parts)
        row, column = torch.nonzero(span.real, as_tuple=True)
        at = (row, span.columns[row, column])
        vectors = before.index_put(at, noisy[row, column].to(before.dtype))
        return network.head(network.trunk(vectors, rows=at[0] * width + at[1], lengths=reach))

    def vectors(
        self, x_t: Float[Tensor, "b s v"], level: Float[Tensor, " b"], parts: Parts
    ) -> Float[Tensor, "b s d"]:
        """softmax(K x_t) as a mixture of embeddings, and the time."""
        time = parts["time"](level.to(x_t.dtype)[:, None])
        vectors: Tensor = parts["simplex"](self.scale * x_t) + time[:, None]
        return vectors

    def nats(self, network: VectorNetwork, clean: CleanRows) -> Nats:
        """Nats at one block of each row, as many times as the row has blocks."""
        x0, noise, mask = clean.x0, clean.noise, clean.mask
        assert noise.key is not None
        parts, free, size = clean.parts, clean.free, min(self.block, x0.shape[1])
        shift = (noise.uniform(1, SHIFT)[:, 0] * size).long() * self.random
        span = chosen_block(free, size, noise.uniform(1, BLOCK)[:, 0], shift)
        tokens, t = x0.gather(1, span.columns), steps(noise.t, total=self.steps)
        vocab = len(matrix_of(parts))
        x_t = add_noise_(gaussians(noise.key, NOISY, (size, vocab)), tokens, levels(t, self.steps))
        logits = self.predicted(network, x0, span, x_t, t / self.steps, parts)
        del x_t
        true = tokens[span.real]
        ce = row_nats(logits, true, mask=mask)
        with torch.no_grad():
            paid = self.step(logits.detach(), ce.detach(), tokens, span, t, noise, mask=mask)
        row, column = torch.nonzero(span.real, as_tuple=True)
        rows = row * x0.shape[1] + span.columns[row, column]
        free_tokens, here = free.sum(1), torch.where(span.real, free.gather(1, span.columns), False).sum(1)
        loss = spread(ce * (free_tokens / here.clamp(min=1))[row].to(ce), rows, x0)
        bound = spread(paid * (self.steps * span.of)[row], rows, x0)
        return Nats(torch.where(free, loss, 0.0), torch.where(free, bound, 0.0))

    def step(
        self,
        logits: Float[Tensor, "n v"],
        ce: Float[Tensor, " n"],
        tokens: Int[Tensor, "b s"],
        span: BlockColumns,
        t: Int[Tensor, " b"],
        noise: Noise,
        *,
        mask: int,
    ) -> Float[Tensor, " n"]:
        """The term of step t at each real position: a KL by one draw of x_{t−1}, or the cross-entropy at t = 1."""
        assert noise.key is not None
        size, vocab = tokens.shape[1], logits.shape[1]
        gamma = levels((t - 1).clamp(min=1), self.steps)
        x_s = add_noise_(gaussians(noise.key, LESS_NOISY, (size, vocab)), tokens, gamma)[span.real]
        row = torch.nonzero(span.real, as_tuple=True)[0]
        kl = simplex_step_nats(forbid(logits, mask).log_softmax(-1), x_s, tokens[span.real], gamma[row])
        return torch.where(t[row] > 1, kl, ce).double()

    def features(self, vocab: int) -> int:
        return vocab

    def path(self, steps: int, parts: Parts) -> Path:
        """Levels of the steps T .. 1, and no noise at the end."""
        t = torch.arange(steps, -1, -1, device=matrix_of(parts).device)
        return Path(levels(t, steps), t[:-1].double() / steps)

    def clean(self, tokens: Int[Tensor, "*shape"], parts: Parts) -> Float[Tensor, "*shape e"]:
        matrix = matrix_of(parts)
        corner = matrix.new_full((*tokens.shape, len(matrix)), -1.0)
        return corner.scatter_(-1, tokens[..., None], 1.0)

    def entered(self, network: Any, noisy: NoisyWindow, parts: Parts) -> Float[Tensor, "b l d"]:
        vectors = self.vectors(noisy.z, noisy.level.expand(len(noisy.z)), parts)
        return torch.cat((network.embed(noisy.before).to(vectors.dtype), vectors), 1)

    def meaning(
        self, output: Float[Tensor, "b s _"], noisy: NoisyWindow, parts: Parts, state: State, *, mask: int
    ) -> VectorPrediction:
        return VectorPrediction(without_mask(output.clone(), mask), None, scale=self.scale)


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """The training loss of SSD-LM as a number: for comparison."""

    facts: ClassVar[Facts] = replace(SSDLM.facts, likelihood=False)
    name: ClassVar[str] = "cross-entropy"
    means: ClassVar[str] = (
        "cross-entropy of a noisy block, the training loss: not a likelihood, and not a bound on -log p"
    )

    model: SSDLM

    def nats(self, network: VectorNetwork, clean: CleanRows) -> Nats:
        loss = self.model.nats(network, clean).loss
        return Nats(loss, loss)
