"""Self-distillation through time: a network learns to do in one call what it does in several. [SDTT]

From a noisy row, the network as it is now takes `teacher` calls, and reveals in each the tokens whose turn it is. The
target of a masked position is its distribution in the call that revealed it, or else in the last one:

    loss = KL(target || p(x_0 | x_t)) at masked positions, and a share of cross-entropy on the data

The mean of the targets over what the calls draw is p(x_0 | x_t) itself wherever the network is consistent, one joint
distribution asked in different ways. So an exact network has nothing to learn here: what is gained is that of a
network whose later calls know more than its earlier ones. And no single call can draw dependent tokens: their
distribution keeps a distance from the true one. The bound that is reported is MDLM's.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import BoundByMDLM, row_log_probs
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats
from unmask.diffusion.rows import spread
from unmask.diffusion.schedule import shown_sigma
from unmask.settings import at_least, check_shares
from unmask.shapes import Network


@OBJECTIVES.register("sdtt", "self-distillation: one call learns what several calls of the same network say")
@dataclass(frozen=True)
class SelfDistillation(BoundByMDLM):
    """Few calls for a text. Train it from a model (`--init`)."""

    facts: ClassVar[Facts] = Facts(optimizer="muon")

    calls: int = 16  # calls in which the student is to write a whole text
    teacher: int = 2  # calls of the teacher in the place of one of the student's
    data: float = 0.1  # share of the loss that is cross-entropy on the data; 1: no distillation

    def __post_init__(self) -> None:
        at_least(1, calls=self.calls)
        at_least(2, teacher=self.teacher)
        check_shares(data=self.data)

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """The distance to what the network says a little later; the bound of the same rows."""
        x_t, rows, logits, ce, weight = self.noisy_pass(network, clean)
        if self.data == 1:
            return Nats(2 * ce, weight * ce)
        now = row_log_probs(logits, mask=clean.mask)
        later = self.targets(network, clean, x_t, rows, now.detach())
        distance = spread(divergence(later, now, mask=clean.mask), rows, clean.x0)
        return Nats(2 * (self.data * ce + (1 - self.data) * distance), weight * ce)

    @torch.no_grad()
    def targets(
        self,
        network: Network,
        clean: CleanRows,
        x_t: Int[Tensor, "b l"],
        rows: Int[Tensor, " n"],
        first: Float[Tensor, "n v"],
    ) -> Float[Tensor, "n v"]:
        """log p of the teacher at masked positions: in the call that reveals them, or in the last one.

        first  its log-probabilities in the first of its calls, where nothing is revealed yet
        """
        x, target, width = x_t.clone(), first.clone(), x_t.shape[1]
        hidden = x_t == clean.mask
        free = clean.free.sum(1)
        turn = torch.where(hidden, -clean.noise.u, torch.inf).argsort(1).argsort(1)  # 0: revealed next
        each = (free / (self.calls * self.teacher)).ceil().long().clamp(min=1)
        call = (turn // each[:, None]).flatten()[rows]  # in which a position is revealed
        for number in range(self.teacher):
            still = call >= number
            if number:
                sigma = shown_sigma(self.schedule, (x == clean.mask).sum(1) / free.clamp(min=1))
                logits = network(x, sigma, rows[still])
                target[still] = row_log_probs(logits, mask=clean.mask).to(target)
            at = rows[call == number]
            u = clean.noise.uniform(width, use=number).flatten()[at]
            x.view(-1)[at] = inverse_cdf_of(target[call == number], u)
        return target


def inverse_cdf_of(log_p: Float[Tensor, "n v"], u: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The first token whose cumulative probability exceeds u."""
    cdf = log_p.double().exp().cumsum(-1)
    top = (cdf[:, -1:] * (1 - 1e-12)).contiguous()
    return torch.searchsorted(cdf, torch.minimum(u.double()[:, None] * cdf[:, -1:], top), right=True).squeeze(1)


def divergence(target: Float[Tensor, "n v"], log_p: Float[Tensor, "n v"], *, mask: int) -> Float[Tensor, " n"]:
    """KL(target || p) of log-probabilities, neither of which has the mask."""
    no = torch.tensor([mask], device=log_p.device)
    apart = target.index_fill(-1, no, 0.0) - log_p.index_fill(-1, no, 0.0)
    return (target.exp() * apart).sum(-1)
