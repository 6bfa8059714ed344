"""Score: how likely a text is, or the tokens in its blanks given the rest: a lower bound in nats, with its error.

The log-probabilities of a trace do not serve: the order in which a text was drawn favours that text, so their sum is
too high on average. Here the tokens are hidden anew, by orders of their own, and the estimate is of the bound.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.diffusion.objective import Objective
from unmask.diffusion.times import stratified
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.random import Noise, keys
from unmask.shapes import Network

NUMBERS = 2**26  # logits held at once: 256 MB


@dataclass(frozen=True)
class Estimate:
    """A number of nats, and the standard error of its estimate."""

    nats: float
    error: float


def scored_by(model: Model) -> Objective:
    """The model's own objective, looked at where its bound has the smallest variance."""
    if not model.objective.facts.infills:
        raise UserError(
            "blanks need a model that sees both sides; this one is autoregressive. Use a diffusion model."
        )
    return model.objective.precise()


@torch.inference_mode()
def log_likelihood(
    model: Model,
    tokens: Int[Tensor, " l"],
    frozen: Bool[Tensor, " l"],
    *,
    unseen: Bool[Tensor, " l"] | None = None,
    looks: int = 32,
    seed: int = 0,
) -> Estimate:
    """A lower bound on log p(the tokens that are not frozen | those that are), in nats.

    looks   forward passes, at evenly spread times or numbers of masks
    unseen  frozen positions that the network sees as masks

    The same random numbers serve every text with as many free tokens, so the difference between two texts is surer
    than either.
    """
    check_looks(looks)
    objective = scored_by(model)
    free = int((~frozen).sum())
    if free == 0:
        return Estimate(0.0, 0.0)
    source = torch.Generator().manual_seed(seed % 2**63)
    t = stratified(torch.rand(looks, generator=source)).clamp(1e-6, 1 - 1e-6).to(tokens.device)
    u = torch.rand(looks, free, generator=source).to(tokens.device)
    key = keys(seed, torch.arange(looks, device=tokens.device))
    u = u[:, ((~frozen).cumsum(0) - 1).clamp(min=0)]  # the i-th free token has the i-th number, wherever it stands
    network = model.network.logits if unseen is None else blindfolded(model.network.logits, unseen, model.mask)
    most = max(1, NUMBERS // (free * model.spec.vocab))
    sums = [
        objective.nats(
            network,
            tokens.expand(len(i), -1),
            noise=Noise(t[i], u[i], key[i]),
            mask=model.mask,
            frozen=frozen.expand(len(i), -1),
            parts=model.parts,
            state=model.state,
        ).bound.sum(1)
        for i in torch.arange(looks, device=tokens.device).split(most)
    ]
    found = -torch.cat(sums).double()
    return Estimate(found.mean().item(), (found.std() / looks**0.5).item())


def check_looks(looks: int) -> None:
    if looks < 2:
        raise UserError(f"an estimate with its error needs at least 2 looks; saw {looks}.")


def blindfolded(network: Network, unseen: Bool[Tensor, " l"], mask: int) -> Network:
    """The network, shown a mask wherever it may not see."""
    return lambda x_t, sigma, rows: network(x_t.masked_fill(unseen, mask), sigma, rows)
