"""DiffusionBERT: masked diffusion in which frequent tokens stay visible longer than rare ones. [He et al. 2022]

The spindle schedule moves each token's level by its frequency. Here a token's level depends on the token alone:

    k_{t,v} = clip(1 − t + λ sin(πt) (f_v − f̄), 0, 1)        f_v = log(count_v + 1)/max, f̄ its mean over the text

so that where a token is hidden says something about what it is, in the model as well: with r_v the chance that a
hidden v is revealed from t to s,

    p(x_s = v | x_t = m) = p_v r_v,   p(x_s = m | x_t = m) = Σ_v p_v (1 − r_v),
    r_v = (k_{s,v} − k_{t,v})/(1 − k_{t,v})

and T times the KL of a step is a bound on −log p. The published number is another one (`published`): it centres f
over the row, gives the model the f of the very tokens that it is to predict, and takes the posterior of another
schedule. Its exponentials can add up to more than 1, so it is no bound. With λ = 0 both are D3PM's.

The paper has another shift than its code (`levels = "information"`): with the information H_v = −log p(v) of a token

    H̄/H_v − 1   in the place of   f_v − f̄

so that of the information, not of the number of tokens, 1 − t is visible. It exceeds 1/(λπ) for frequent tokens,
whose level would first rise: there it is cut, and then more than 1 − t is hidden.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.d3pm import check_hybrid, draw_steps, step_nats
from unmask.diffusion.kernels.spindle import MOST, Spindle
from unmask.diffusion.objective import OBJECTIVES, CountsPart, Facts, Nats, Objective
from unmask.diffusion.rows import pick, rows_where, spread
from unmask.diffusion.schedule import LogLinear, shown_sigma
from unmask.diffusion.times import Stratified, Times, check_total, steps
from unmask.errors import UserError
from unmask.shapes import Network, RowLogits, Tokens

Levels = Literal["counts", "information"]
SHOWN = 0.999  # the published schedule keeps no token with more than this chance


class Frequency(CountsPart):
    """How often each id occurs in the training text: a table that is saved with the model."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.counts: Tensor
        self.register_buffer("counts", torch.zeros(vocab))

    def fill(self, counts: Int[Tensor, " v"]) -> None:
        if len(counts) != len(self.counts):
            raise UserError(
                f"the frequency table has {len(counts)} ids and the network {len(self.counts)}: it belongs to "
                "another tokenizer. Count the tokens of the training text with the network's own."
            )
        self.counts.copy_(counts)

    @property
    def logarithmic(self) -> Float[Tensor, " v"]:
        """f_v = log(count_v + 1)/max, in 0..1; all 0 before anything is counted."""
        f = torch.log1p(self.counts)
        return f / f.max().clamp(min=1e-9)

    @property
    def centred(self) -> Float[Tensor, " v"]:
        """f_v less its mean over the training text."""
        f = self.logarithmic
        return f - (f * self.counts).sum() / self.counts.sum().clamp(min=1)

    @property
    def informed(self) -> Float[Tensor, " v"]:
        """H̄/H_v − 1, H̄ the mean of H over the training text; 0 is the mean of H_v times it."""
        h = -((self.counts + 1) / (self.counts + 1).sum()).log()
        mean = (h * self.counts).sum() / self.counts.sum().clamp(min=1)
        return mean / h.clamp(min=1e-9) - 1

    def shift(self, levels: Levels, *, strength: float) -> Float[Tensor, " v"]:
        """What the spindle moves each token's level by, cut where a level would rise with t."""
        most = MOST / max(strength, 1e-9)
        return (self.centred if levels == "counts" else self.informed).clamp(-most, most)


@OBJECTIVES.register(
    "diffusionbert", "DiffusionBERT: frequent tokens stay visible longer (spindle schedule), T steps"
)
@dataclass(frozen=True)
class DiffusionBERT(Objective):
    """The spindle schedule with the bound that belongs to it. Start from an encoder with --init."""

    facts: ClassVar[Facts] = Facts(gives=frozenset({"masks", "levels by token"}), asked=0.5, sampler="diffusionbert")

    strength: float = 0.3  # λ of the spindle schedule; 0: every token alike
    levels: Levels = "counts"  # by log counts, as in the authors' code; or by information, as in their paper
    steps: int = 2048  # T, the number of steps
    hybrid: float = 0.01  # λ of the hybrid loss: the KL of a step + λ · cross-entropy at all positions
    times: Times = Stratified()  # stratified:low=0, bell:mean=0,spread=1,floor=0.2

    def __post_init__(self) -> None:
        check_total(self.steps)
        check_hybrid(self.hybrid)
        Spindle(self.strength)

    @property
    def means(self) -> str:
        return f"upper bound on -log p, masked diffusion with a spindle schedule and {self.steps} steps"

    def parts(self, *, vocab: int, width: int) -> dict[str, nn.Module]:
        return {"frequency": Frequency(vocab)}

    def kernel(self, parts: Mapping[str, nn.Module] | None = None) -> Spindle:
        return Spindle(self.strength, frequency_table(parts).shift(self.levels, strength=self.strength))

    def estimators(self) -> Mapping[str, Objective]:
        precise = replace(self, times=self.times.precise())
        return {self.name: precise, "published": PublishedNumber(precise)}

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """Nats per token: T times the KL of the step that contains t."""
        at = draw_steps(self.times, clean.noise, self.steps)
        return step_nats(network, clean, self.kernel(clean.parts), at, hybrid=self.hybrid)


def frequency_table(parts: Mapping[str, nn.Module] | None) -> Frequency:
    frequency = None if parts is None else parts.get("frequency")
    if not isinstance(frequency, Frequency):
        raise ValueError("the spindle schedule needs a frequency table: give parts")
    return frequency


@dataclass(frozen=True)
class PublishedNumber(Objective):
    """The number that the DiffusionBERT code computes. It is not a bound: see above."""

    name: ClassVar[str] = "published"
    facts: ClassVar[Facts] = Facts(
        likelihood=False, gives=frozenset({"masks", "levels by token"}), asked=1.0, sampler="diffusionbert"
    )

    of: DiffusionBERT

    @property
    def means(self) -> str:
        return f"what DiffusionBERT's code reports, {self.of.steps} steps; not a bound, so not a likelihood"

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """T times the KL of one step; at the first step it is −log p(x_0 | x_1)."""
        x0, noise, mask = clean.x0, clean.noise, clean.mask
        total, free = self.of.steps, clean.free
        when = self.of.times.at(noise.t)
        i = steps(when.t, total=total)
        f = centred_by_row(frequency_table(clean.parts).logarithmic[x0], free).to(noise.t)
        k_t, k_s = (published_keep(j, f, total=total, strength=self.of.strength) for j in (i, i - 1))
        x_t = torch.where((noise.u < 1 - k_t) & free, mask, x0)
        rows = rows_where(free)
        logits = network(x_t, shown_sigma(LogLinear(), i.to(when.t.dtype) / total).to(noise.t), rows)
        log_p = logits.log_softmax(-1)
        of_row = rows // x0.shape[1]
        beta = 1 / (total - (i - 1)).to(log_p)  # of the step from i − 1 to i, whatever the token
        kl = published_kl(
            log_p, x0.flatten()[rows], x_t.flatten()[rows], k_s.flatten()[rows], beta[of_row], mask=mask
        )
        bound = total * spread(kl, rows, x0) / when.density[:, None]
        return Nats(bound, bound)

    def log_probs(self, logits: RowLogits, x_t: Tokens, *, mask: int) -> RowLogits:
        return logits.log_softmax(-1)


def centred_by_row(f: Float[Tensor, "b l"], real: Bool[Tensor, "b l"]) -> Float[Tensor, "b l"]:
    """f less its mean over the real tokens of the row."""
    return f - (f * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)


def published_keep(
    i: Int[Tensor, " b"], centred: Float[Tensor, "b l"], *, total: int, strength: float
) -> Float[Tensor, "b l"]:
    """The chance to be visible after step i, as coded: at most `SHOWN`, and 1 before the first step."""
    t = (i.to(centred.dtype) / total)[:, None]
    k = (1 - t + strength * torch.sin(math.pi * t) * centred).clamp(0, SHOWN)
    return torch.where(t <= 0, 1.0, k)


def published_kl(
    log_p: Float[Tensor, "n v"],
    true: Int[Tensor, " n"],
    x_t: Int[Tensor, " n"],
    k: Float[Tensor, " n"],
    beta: Float[Tensor, " n"],
    *,
    mask: int,
) -> Float[Tensor, " n"]:
    """KL of x_0's posterior from the model's, as coded: both with the true token's k, and β of another schedule.

    From a mask: q ∝ (x_0: β k, m: 1 − k), and p the same with the network's softmax, mass on the mask included, in
    the place of x_0. A visible token stays what it is in both.
    """
    p, p_mask = log_p.exp(), log_p[:, mask].exp()
    shown, stays = (beta * k)[:, None] * p, k * p_mask + 1 - k  # q(m | m) = 1
    shown = shown.index_fill(-1, torch.tensor([mask], device=p.device), 0.0)
    norm = shown.sum(-1) + stays
    r = beta * k / (beta * k + 1 - k)
    log_shown = (beta * k).log() + pick(log_p, true) - norm.log()
    kl = torch.xlogy(r, r) - r * log_shown + torch.xlogy(1 - r, 1 - r) - (1 - r) * (stays.log() - norm.log())
    return torch.where(x_t == mask, kl, 0.0)
