"""SEDD with an absorbing mask: the network estimates ratios of probabilities, trained by score entropy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.diffusion import mdlm
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.kernels.absorbing import Absorbing
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.reverse import row_log_scores
from unmask.diffusion.rows import pick, rows_where, spread
from unmask.diffusion.schedule import Level, LogLinear, Schedule
from unmask.diffusion.times import Stratified, Times
from unmask.shapes import Network, RowLogits, Tokens


def score_entropy(
    log_s: Float[Tensor, "n v"], true: Int[Tensor, " n"], level: Level, *, mask: int
) -> Float[Tensor, " n"]:
    """σ' (Σ_{y≠m} s_y − r log s_x + r (log r − 1)) with r = 1/(e^σ − 1): zero for the true ratios. [SEDD]"""
    r = level.alpha / level.hidden  # 1/(e^σ − 1) = α/(1 − α)
    total = log_s.exp().index_fill(-1, torch.tensor([mask], device=log_s.device), 0.0).sum(-1)
    return level.rate * (total - r * pick(log_s, true) + r * (torch.log(r) - 1))


@OBJECTIVES.register("sedd", "score entropy with an absorbing mask")
@dataclass(frozen=True)
class SEDD(Objective):
    """The SEDD objective: its scores depend on σ, and training works best when the network takes σ as input."""

    facts: ClassVar[Facts] = Facts(
        gives=frozenset({"masks", "scores"}), loss_needs_sigma=True, network_wants_sigma=True, sampler="analytic"
    )
    means: ClassVar[str] = (
        "SEDD's score entropy: a bound on -log p less the noise levels that schedule and times leave out"
    )

    schedule: Schedule = LogLinear()  # α_t; must stay above 0, because scores vanish there
    times: Times = Stratified()  # stratified:low=0, bell:mean=0,spread=1,floor=0.2

    def kernel(self, parts: Mapping[str, nn.Module] | None = None) -> Absorbing:
        return Absorbing(self.schedule, whole=False)

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """Nats per token at times t > 0, with tokens hidden by the uniforms u."""
        x0, mask, when = clean.x0, clean.mask, self.times.at(clean.noise.t)
        kernel = self.kernel()
        level = kernel.level(when.t)
        x_t = kernel.forward(clean, when.t)
        rows = rows_where(x_t == mask)
        at_rows = level.take(rows // x0.shape[1])
        log_s = row_log_scores(network(x_t, level.sigma, rows), at_rows.sigma, mask=mask)
        nats = spread(score_entropy(log_s, x0.flatten()[rows], at_rows, mask=mask), rows, x0)
        bound = nats / when.density[:, None]
        return Nats(bound, bound)

    def log_probs(self, logits: RowLogits, x_t: Tokens, *, mask: int) -> RowLogits:
        """The scores of a hidden token, normalised: they are proportional to p(x_0 | x_t)."""
        return mdlm.log_probs(logits, x_t, mask=mask)
