"""The reference's samplers, step by step and with all their work, for comparison only: `fill` is what to use.

Every step builds (b l v) weights over tokens and mask and draws from all of them by a race in float32, with a block
of uniforms of that shape handed in. The last call is greedy. Laws and defects are kept as they are.
"""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.mdlm import log_probs
from unmask.diffusion.schedule import LogLinear, Schedule
from unmask.diffusion.times import check_total, grid
from unmask.shapes import Network

Uniforms = Iterator[Tensor]  # one block (b l v) a draw
LAST = 1e-5  # where the reference's grid of times ends


def race(weights: Float[Tensor, "b l v"], u: Float[Tensor, "b l v"]) -> Int[Tensor, "b l"]:
    """argmax w/(1e-10 − log(u + 1e-10)): the Gumbel draw. In float32 it misses rare tokens."""
    return (weights / (1e-10 - (u + 1e-10).log())).argmax(-1)


def everywhere(network: Network, x: Int[Tensor, "b l"], sigma: Float[Tensor, ""]) -> Float[Tensor, "b l v"]:
    """The network's logits at every position."""
    rows = torch.arange(x.numel(), device=x.device)
    return network(x, sigma.float().expand(len(x)), rows).view(*x.shape, -1)


def with_mask_at(weights: Float[Tensor, "b l v"], mask: int, weight: float) -> Float[Tensor, "b l v"]:
    return weights.index_fill(-1, torch.tensor([mask], device=weights.device), weight)


def greedy_end(network: Network, x: Int[Tensor, "b l"], schedule: Schedule, mask: int) -> Int[Tensor, "b l"]:
    """One more call at the last time; what is still hidden becomes its likeliest token."""
    logits = everywhere(network, x, schedule.at(torch.tensor(LAST)).sigma)
    return log_probs(logits, x, mask=mask).argmax(-1)


def ancestral(
    network: Network,
    x: Int[Tensor, "b l"],
    *,
    steps: int,
    mask: int,
    uniforms: Uniforms,
    schedule: Schedule | None = None,
    noise_removal: bool = True,
) -> Iterator[Int[Tensor, "b l"]]:
    """T steps with a call each: token y weighs p_y (m_t − m_s), the mask m_s, with m = 1 − α."""
    check_total(steps)
    schedule = schedule or LogLinear()
    times = grid(steps, last=LAST).float()
    dt = (1 - LAST) / steps
    for t in times[:-1]:
        level, before = schedule.at(t), schedule.at(t - dt)
        p = log_probs(everywhere(network, x, level.sigma), x, mask=mask).exp()
        weights = with_mask_at(p * (level.hidden - before.hidden), mask, float(before.hidden))
        x = torch.where(x == mask, race(weights, next(uniforms)), x)
        yield x
    if noise_removal:
        yield greedy_end(network, x, schedule, mask)


def cached(
    network: Network,
    x: Int[Tensor, "b l"],
    *,
    steps: int,
    mask: int,
    uniforms: Uniforms,
    noise_removal: bool = True,
) -> Iterator[Int[Tensor, "b l"]]:
    """The same on t itself, asking again only after some token of the whole batch has changed."""
    check_total(steps)
    dt = (1 - LAST) / steps
    p: Tensor | None = None
    for t in grid(steps, last=LAST).float()[:-1].tolist():
        if p is None:
            p = log_probs(everywhere(network, x, torch.zeros(())), x, mask=mask).exp()
        after = torch.where(x == mask, race(with_mask_at(p * dt, mask, t - dt), next(uniforms)), x)
        if not torch.equal(after, x):
            p = None
        x = after
        yield x
    if noise_removal:
        yield greedy_end(network, x, LogLinear(), mask)


# log-scores (b l v) of logits, tokens and σ
Scores = Callable[[Tensor, Tensor, Tensor], Tensor]


def sedd_scores(logits: Tensor, x: Tensor, sigma: Tensor) -> Tensor:
    """SEDD's own: the logits shifted by −log(e^σ − 1) − log(v − 1), 0 at the token that stands there."""
    shift = -torch.log(torch.expm1(sigma)) - math.log(logits.shape[-1] - 1)
    return (logits + shift).scatter(-1, x[..., None], 0.0)


def subs_scores(mask: int) -> Scores:
    """From SUBS: p_y/(e^σ − 1) where hidden and 1 at the mask; where visible 1 at the token, e^σ − 1 at the mask."""

    def scores(logits: Tensor, x: Tensor, sigma: Tensor) -> Tensor:
        log_k = -torch.log(torch.expm1(sigma))
        hidden = (log_probs(logits, x, mask=mask) + log_k).clamp(min=-1e9)
        hidden = with_mask_at(hidden, mask, 0.0)
        visible = torch.full_like(logits, -1e9).scatter(-1, x[..., None], 0.0)
        visible = with_mask_at(visible, mask, float(-log_k))
        return torch.where((x == mask)[..., None], hidden, visible)

    return scores


def analytic(
    network: Network,
    x: Int[Tensor, "b l"],
    *,
    steps: int,
    mask: int,
    uniforms: Uniforms,
    scores: Scores,
    schedule: Schedule | None = None,
) -> Iterator[Int[Tensor, "b l"]]:
    """T analytic steps: staggered score times transposed transition, then a last step down to no noise."""
    check_total(steps)
    schedule = schedule or LogLinear()
    dt = (1 - LAST) / steps
    for t in grid(steps, last=LAST).float():
        now = schedule.at(t).sigma
        final = bool(t == LAST) or bool(t < dt)
        step = now if final else now - schedule.at(t - dt).sigma
        score = scores(everywhere(network, x, now), x, now).exp()
        weights = staggered(score, step, mask) * transposed(x, step, score.shape[-1], mask)
        if final:
            weights = with_mask_at(weights, mask, 0.0)
        x = race(weights, next(uniforms))
        yield x


def staggered(score: Float[Tensor, "b l v"], step: Float[Tensor, ""], mask: int) -> Float[Tensor, "b l v"]:
    """e^Δσ s, with (1 − e^Δσ) Σ s added at the mask."""
    extra = (1 - step.exp()) * score.sum(-1)
    score = score * step.exp()
    score[..., mask] += extra
    return score


def transposed(x: Int[Tensor, "b l"], step: Float[Tensor, ""], vocab: int, mask: int) -> Float[Tensor, "b l v"]:
    """q(x | y) for every y: e^−Δσ to stay, and the mask may come from anywhere."""
    stay = torch.nn.functional.one_hot(x, vocab) * (-step).exp()
    return stay + torch.where(x == mask, 1 - (-step).exp(), 0.0)[..., None]


def semi_autoregressive(
    network: Network,
    x: Int[Tensor, "b l"],
    *,
    stride: int,
    strides: int,
    dt: float,
    mask: int,
    uniforms: Uniforms,
) -> Int[Tensor, "b longer"]:
    """Window after window, each with 1/dt + 1 cached steps down to t = 0 and a greedy end."""
    done = x[:, :0]
    for window in range(strides + 1):
        p: Tensor | None = None
        for i in range(round(1 / dt) + 1):
            if p is None:
                p = log_probs(everywhere(network, x, torch.zeros(())), x, mask=mask).exp()
            t = 1 - i * dt
            after = torch.where(x == mask, race(with_mask_at(p * dt, mask, t - dt), next(uniforms)), x)
            if not torch.equal(after, x):
                p = None
            x = after
        x = log_probs(everywhere(network, x, torch.zeros(())), x, mask=mask).argmax(-1)
        done = torch.cat([done, x if window == strides else x[:, :stride]], 1)
        x = torch.cat([x[:, stride:], torch.full_like(x[:, :stride], mask)], 1)
    return done


def autoregressive(
    network: Network, x: Int[Tensor, "b l"], *, gumbel: Float[Tensor, "b rest v"], mask: int
) -> Int[Tensor, "b l"]:
    """Left to right from the first token: argmax of log p plus noise, the mask at the logit −1000."""
    b, l = x.shape
    for i in range(1, l):
        logits = network(x, torch.zeros(b), torch.arange(b) * l + i)
        log_p = with_mask_at(logits[:, None], mask, -1000.0).log_softmax(-1)[:, 0]
        x = x.index_copy(1, torch.tensor([i]), (log_p + gumbel[:, i - 1]).argmax(-1)[:, None])
    return x
