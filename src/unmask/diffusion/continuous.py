"""Continuous diffusion of text: a token is a vector, noise is Gaussian, and a network takes the noise away.

    z_t = α_t x + σ_t n,    α_t² = sigmoid(−γ_t),    σ_t² = sigmoid(γ_t),    signal-to-noise ratio e^−γ_t

Every objective in continuous space is described by these methods to one sampling process: the noise levels of a
path, the vectors of tokens, the network's input, and what its output means.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.diffusion.objective import Objective
from unmask.diffusion.rows import check_mask
from unmask.errors import UserError

Parts = Mapping[str, nn.Module]
State = Mapping[str, Tensor]


@runtime_checkable
class VectorNetwork(Protocol):
    """A network whose input is vectors, cut between trunk and head: `model.denoiser.NetworkView`."""

    @property
    def unseen(self) -> Bool[Tensor, " l"] | None:
        """Positions of which the network must learn nothing; None: it may see all."""

    def trunk(
        self, x: Float[Tensor, "b l d"], *, rows: Int[Tensor, " n"] | None = None, lengths: Tensor | None = None
    ) -> Float[Tensor, "..."]:
        """Hidden states of all positions (b l d), or of the flat positions `rows` (n d)."""

    def head(self, hidden: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape v"]: ...

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]: ...

    def some(self, index: Int[Tensor, " k"]) -> "VectorNetwork":
        """The network for some of the rows of the batch."""


class Path(NamedTuple):
    """The noise levels of a sampler, from pure noise to text: call i is shown level i and leads to level i + 1."""

    gamma: Float[Tensor, " calls_and_end"]  # γ of each level, falling; one more than there are calls
    level: Float[Tensor, " calls"]  # what the network is told of the noise level in each call


class NoisyWindow(NamedTuple):
    """What a sampler shows an objective in one call: noisy vectors, and what is known beside them."""

    z: Float[Tensor, "b s e"]
    gamma: Float[Tensor, ""]  # the noise level γ
    level: Float[Tensor, ""]  # what the network is told of it
    before: Int[Tensor, "b c"]  # clean text before the vectors
    guess: Float[Tensor, "b s e"] | None = None  # the last estimate of clean vectors


class VectorPrediction(NamedTuple):
    """What a network's output means: the tokens' logits, and the expected clean vectors."""

    logits: Float[Tensor, "b l v"]
    x: Float[Tensor, "b l e"] | None  # None: the sampler makes it from the logits
    scale: float = 1.0  # of the vectors, where the sampler makes them
    wide: bool = False  # a step has the variance of the forward step, not that of the posterior


class Continuous(Objective):
    """An objective in continuous space."""

    @abstractmethod
    def features(self, vocab: int) -> int:
        """Numbers per position of a noisy text."""

    @abstractmethod
    def path(self, steps: int, parts: Parts) -> Path:
        """The noise levels of a sampler with this number of steps."""

    @abstractmethod
    def clean(self, tokens: Int[Tensor, "*shape"], parts: Parts) -> Float[Tensor, "*shape e"]:
        """The vectors of tokens."""

    @abstractmethod
    def entered(self, network: Any, noisy: NoisyWindow, parts: Parts) -> Float[Tensor, "b l d"]:
        """The network's input: clean text before, then noisy vectors."""

    @abstractmethod
    def meaning(
        self, output: Float[Tensor, "b s _"], noisy: NoisyWindow, parts: Parts, state: State, *, mask: int
    ) -> VectorPrediction:
        """The meaning of the network's logits, or of its hidden states if `facts.unused` has the head."""

    def ended(
        self, reading: VectorPrediction, normal: Float[Tensor, "b s e"], parts: Parts, *, mask: int
    ) -> VectorPrediction:
        """The last call's reading, from whose logits the tokens are drawn."""
        return reading


def alpha(gamma: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """α_t, the share of the signal in the standard deviation."""
    return torch.sigmoid(-gamma).sqrt()


def sigma(gamma: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """σ_t, the standard deviation of the noise."""
    return torch.sigmoid(gamma).sqrt()


def level_of(share: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """γ where the signal's share ᾱ = α² is this."""
    return torch.log((1 - share) / share)


def posterior(
    z: Float[Tensor, "*shape"],
    x: Float[Tensor, "*shape"],
    gamma_s: Float[Tensor, "..."],
    gamma_t: Float[Tensor, "..."],
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "..."]]:
    """Mean and variance of q(z_s | z_t, x), s < t. [DDPM, VDM]

    mean (α_t/α_s)(σ_s²/σ_t²) z + α_s c x and variance c σ_s², with c = 1 − SNR_t/SNR_s = −expm1(γ_s − γ_t).
    """
    c = -torch.expm1(gamma_s - gamma_t)
    share = alpha(gamma_t) / alpha(gamma_s) * torch.sigmoid(gamma_s) / torch.sigmoid(gamma_t)
    return (share * z + alpha(gamma_s) * c * x).to(z.dtype), posterior_variance(gamma_s, gamma_t)


def posterior_variance(gamma_s: Float[Tensor, "..."], gamma_t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The variance of q(z_s | z_t, x): c σ_s²."""
    return -torch.expm1(gamma_s - gamma_t) * torch.sigmoid(gamma_s)


def forward_variance(gamma_s: Float[Tensor, "..."], gamma_t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The variance of q(z_t | z_s): c σ_t², β_t in the letters of [DDPM]."""
    return -torch.expm1(gamma_s - gamma_t) * torch.sigmoid(gamma_t)


def carried_on(
    z: Float[Tensor, "*shape"],
    x: Float[Tensor, "*shape"],
    gamma_s: Float[Tensor, "..."],
    gamma_t: Float[Tensor, "..."],
) -> Float[Tensor, "*shape"]:
    """α_s x + σ_s (z − α_t x)/σ_t: the step without new noise, which keeps the noise that z has. [DDIM]"""
    noise = (z - alpha(gamma_t) * x) / sigma(gamma_t)
    return (alpha(gamma_s) * x + sigma(gamma_s) * noise).to(z.dtype)


def prior_nats(x: Float[Tensor, "*b e"], gamma: Float[Tensor, "..."]) -> Float[Tensor, "*b"]:
    """KL(q(z_1 | x) || N(0, 1)) of each position: Σ ½(σ² + α² x² − 1 − log σ²)."""
    square, noise = x.double() ** 2, torch.sigmoid(gamma)
    return 0.5 * (noise - 1 - torch.nn.functional.logsigmoid(gamma) + torch.sigmoid(-gamma) * square).sum(-1)


def without_mask(logits: Float[Tensor, "*shape v"], mask: int) -> Float[Tensor, "*shape v"]:
    """The logits of a fresh tensor with −∞ at the mask, which is never predicted; written in place."""
    check_mask(mask, logits.shape[-1])
    return logits.index_fill_(-1, torch.tensor([mask], device=logits.device), -torch.inf)


def check_embed(embed: int) -> None:
    if embed < 1:
        raise UserError(f"embed must be at least 1, the numbers of a token's vector; saw {embed}.")
