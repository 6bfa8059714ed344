"""Score: a lower bound on log p of a text, or of its blanks given the rest, in nats, with its standard error.

The log-probabilities of a trace are no estimate of it: the order in which a text was drawn favours that text, so
their sum is too high on average. Here the tokens are hidden anew at random, which estimates the bound.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import Objective
from unmask.diffusion.times import stratified_times
from unmask.errors import UserError
from unmask.model.denoiser import NetworkView
from unmask.model.model import Model
from unmask.random import Noise, keys, seed_of

NUMBERS = 2**26  # logits held at once: 256 MB
MOST_PASSES = 100_000  # for an estimate: what is drawn for them is held at once
EARLY = 4  # one of so many forward passes tells which of several texts are close to the best
FAR = 3.0  # standard errors


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
            "from left to right. Use a masked diffusion model."
        )
    return model.objective.bounded()


def log_likelihood(
    model: Model,
    tokens: Int[Tensor, " l"],
    frozen: Bool[Tensor, " l"],
    *,
    unseen: Bool[Tensor, " l"] | None = None,
    passes: int = 32,
    seed: int = 0,
) -> Estimate:
    """A lower bound on log p(free tokens | frozen tokens), in nats.

    A block model does not see text after a blank. Such text is scored too: log p(free tokens and what follows | what
    is before them) ranks the texts for a blank as log p(free tokens | frozen tokens) would.

    passes  forward passes, at stratified times or numbers of masks
    unseen  frozen positions that the network sees as masks

    Texts with the same number of free tokens share random numbers, so their difference has a smaller error than
    either score.
    """
    check_passes(passes)
    scored_by(model)
    frozen = model.objective.seen(frozen)
    free = int((~frozen).sum())
    if free == 0:
        return Estimate(0.0, 0.0)
    source = torch.Generator().manual_seed(seed % 2**63)
    t = stratified_times(torch.rand(passes, generator=source)).clamp(1e-6, 1 - 1e-6)
    noise = Noise(t, torch.rand(passes, free, generator=source), keys(seed, torch.arange(passes)))
    estimates = bounds(model, tokens, frozen, noise.to(tokens.device), unseen=unseen)
    return Estimate(estimates.mean().item(), (estimates.std() / passes**0.5).item())


def log_likelihoods(
    model: Model, texts: Int[Tensor, "c l"], frozen: Bool[Tensor, " l"], *, passes: int = 32, seed: int = 0
) -> list[Estimate]:
    """The same for several texts that share their frozen tokens, batched, to rank them.

    A quarter of the forward passes is for all of them. Those that are then within three standard errors of the best
    get the rest; any other is as far behind the best as it was. All share random numbers.
    """
    if len(texts) == 1:
        return [log_likelihood(model, texts[0], frozen, passes=passes, seed=seed)]
    check_passes(passes)
    scored_by(model)
    frozen = model.objective.seen(frozen)
    free = int((~frozen).sum())
    if free == 0:
        return [Estimate(0.0, 0.0)] * len(texts)
    early = max(2, passes // EARLY)
    first = shared_bounds(model, texts, frozen, shared_noise(early, free, seed, 0))
    best = int(first.mean(1).argmax())
    behind = first[best] - first
    distance, error = behind.mean(1), behind.std(1) / early**0.5
    close = (distance <= FAR * error).nonzero().squeeze(1)
    whole = first
    if len(close) > 1 and passes - early > 1:
        more = shared_bounds(model, texts[close], frozen, shared_noise(passes - early, free, seed, 1))
        whole = torch.cat([first, first.new_full((len(texts), passes - early), torch.nan)], 1)
        whole[close, early:] = more
    top = Estimate(float(whole[best].mean()), float(whole[best].std() / whole.shape[1] ** 0.5))
    estimates = [
        Estimate(top.nats - float(d), float((e**2 + top.error**2) ** 0.5))
        for d, e in zip(distance, error, strict=True)
    ]
    for i in close.tolist():
        estimates[i] = Estimate(float(whole[i].mean()), float(whole[i].std() / whole.shape[1] ** 0.5))
    return estimates


def shared_noise(passes: int, free: int, seed: int, number: int) -> Noise:
    """The random numbers of some forward passes, the same for every text with so many free tokens."""
    source = torch.Generator().manual_seed(seed_of(seed, number))
    t = stratified_times(torch.rand(passes, generator=source)).clamp(1e-6, 1 - 1e-6)
    rows = torch.arange(passes) + (number << 32)
    return Noise(t, torch.rand(passes, free, generator=source), keys(seed, rows))


def shared_bounds(
    model: Model, texts: Int[Tensor, "c l"], frozen: Bool[Tensor, " l"], noise: Noise
) -> Float[Tensor, "c passes"]:
    """`bounds` of every text with the same noise."""
    count, passes = len(texts), len(noise.t)
    assert noise.key is not None
    repeated = Noise(noise.t.repeat(count), noise.u.repeat(count, 1), noise.key.repeat(count)).to(texts.device)
    return bounds(model, texts.repeat_interleave(passes, 0), frozen, repeated).view(count, passes)


@torch.inference_mode()
def bounds(
    model: Model,
    tokens: Int[Tensor, "*passes l"],
    frozen: Bool[Tensor, " l"],
    noise: Noise,
    *,
    unseen: Bool[Tensor, " l"] | None = None,
) -> Float[Tensor, " passes"]:
    """Estimates of log p(free tokens | frozen tokens), one per row of the noise, whose u is for free tokens only.

    tokens  the text, or one for each row
    """
    objective, free = scored_by(model), noise.u.shape[1]
    u = noise.u[:, ((~frozen).cumsum(0) - 1).clamp(min=0)]  # the i-th free token has the i-th number, wherever it is
    noise = Noise(noise.t, u, noise.key)
    network = NetworkView(model.network, unseen=unseen, mask=model.mask)
    most = max(1, NUMBERS // (free * model.spec.vocab))
    rows = tokens.expand(len(u), -1)
    sums = [
        objective.nats(
            network,
            CleanRows(
                rows[first : first + most],
                noise.rows(slice(first, first + most)),
                mask=model.mask,
                frozen=frozen.expand(min(most, len(u) - first), -1),
                parts=model.parts,
                state=model.state,
            ),
        ).bound.sum(1)
        for first in range(0, len(u), most)
    ]
    return -torch.cat(sums).double()


def check_passes(passes: int) -> None:
    if passes < 2:
        raise UserError(f"an estimate with a standard error needs at least 2 forward passes; saw {passes}.")
    if passes > MOST_PASSES:
        raise UserError(f"the number of forward passes may be {MOST_PASSES:,} at most; saw {passes:,}.")
