"""Score: a lower bound on log p of a text, or of its blanks given the rest, in nats, with its standard error.

The log-probabilities of a trace are no estimate of it: the order in which a text was drawn favours that text, so
their sum is too high on average. Here the tokens are hidden anew at random, which estimates the bound.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.objective import Objective
from unmask.diffusion.times import stratified
from unmask.errors import UserError
from unmask.model.denoiser import NetworkView
from unmask.model.model import Model
from unmask.random import Noise, keys

NUMBERS = 2**26  # logits held at once: 256 MB


@dataclass(frozen=True)
class Estimate:
    """An estimate in nats, and its standard error."""

    nats: float
    error: float


def scored_by(model: Model) -> Objective:
    """The objective that bounds −log p of the model, with the estimator of smallest variance."""
    if not model.objective.facts.infills:
        raise UserError(
            f"blanks need a model that sees both sides; this one, of the objective {model.objective.name}, writes "
            "from "
            "left to right. Use a masked diffusion model."
        )
    return model.objective.bounded()


def log_likelihood(
    model: Model,
    tokens: Int[Tensor, " l"],
    frozen: Bool[Tensor, " l"],
    *,
    unseen: Bool[Tensor, " l"] | None = None,
    looks: int = 32,
    seed: int = 0,
) -> Estimate:
    """A lower bound on log p(free tokens | frozen tokens), in nats.

    A block model does not see text after a blank. Such text is scored too: log p(free tokens and what follows | what
    is before them) ranks the texts for a blank as log p(free tokens | frozen tokens) would.

    looks   forward passes, at stratified times or numbers of masks
    unseen  frozen positions that the network sees as masks

    Texts with the same number of free tokens share random numbers, so their difference has a smaller error than
    either score.
    """
    check_looks(looks)
    scored_by(model)
    frozen = model.objective.seen(frozen)
    free = int((~frozen).sum())
    if free == 0:
        return Estimate(0.0, 0.0)
    source = torch.Generator().manual_seed(seed % 2**63)
    t = stratified(torch.rand(looks, generator=source)).clamp(1e-6, 1 - 1e-6)
    noise = Noise(t, torch.rand(looks, free, generator=source), keys(seed, torch.arange(looks)))
    found = bounds(model, tokens, frozen, noise.to(tokens.device), unseen=unseen)
    return Estimate(found.mean().item(), (found.std() / looks**0.5).item())


@torch.inference_mode()
def bounds(
    model: Model,
    tokens: Int[Tensor, " l"],
    frozen: Bool[Tensor, " l"],
    noise: Noise,
    *,
    unseen: Bool[Tensor, " l"] | None = None,
) -> Float[Tensor, " looks"]:
    """Estimates of log p(free tokens | frozen tokens), one per row of the noise, whose u is for free tokens only."""
    objective, free = scored_by(model), noise.u.shape[1]
    u = noise.u[:, ((~frozen).cumsum(0) - 1).clamp(min=0)]  # the i-th free token has the i-th number, wherever it is
    noise = Noise(noise.t, u, noise.key)
    network = NetworkView(model.network, unseen=unseen, mask=model.mask)
    most = max(1, NUMBERS // (free * model.spec.vocab))
    sums = [
        objective.nats(
            network,
            tokens.expand(min(most, len(u) - first), -1),
            noise=noise.rows(slice(first, first + most)),
            mask=model.mask,
            frozen=frozen.expand(min(most, len(u) - first), -1),
            parts=model.parts,
            state=model.state,
        ).bound.sum(1)
        for first in range(0, len(u), most)
    ]
    return -torch.cat(sums).double()


def check_looks(looks: int) -> None:
    if looks < 2:
        raise UserError(f"an estimate with a standard error needs at least 2 forward passes (looks); saw {looks}.")
