"""PRISM: the network learns which drawn tokens are wrong, in the one logit that masked diffusion leaves unused.

The mask is never predicted, so its logit means nothing. Here it becomes the quality of the token at a position: some
masked tokens are drawn from the network, and in a second pass

    q_i = sigmoid(logit of the mask at i),   loss = cross-entropy of q_i against "the token drawn at i is true"

The best q_i is the probability that the token is right, given the text that the network sees. The sampler `prism`
hides tokens of low quality again. Everything else, the bound and all other samplers, is MDLM's. [PRISM]
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import BoundByMDLM, row_log_probs
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats
from unmask.diffusion.rows import spread
from unmask.diffusion.schedule import shown_sigma
from unmask.diffusion.self_distillation import inverse_cdf_of
from unmask.settings import at_least
from unmask.shapes import Network


@OBJECTIVES.register("prism", "mdlm that also learns which drawn tokens are wrong, for the sampler prism")
@dataclass(frozen=True)
class LearnedQuality(BoundByMDLM):
    """Masked diffusion with the quality of drawn tokens. Train it from a model (`--init`)."""

    facts: ClassVar[Facts] = Facts(gives=frozenset({"masks", "conditionals", "quality"}), optimizer="muon")

    quality: float = 1.0  # weight of the quality in the loss, beside cross-entropy on the data

    def __post_init__(self) -> None:
        at_least(0, quality=self.quality)

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """MDLM's numbers, and the cross-entropy of the quality of tokens that are drawn from the same pass."""
        x_t, rows, logits, ce, weight = self.noisy_pass(network, clean)
        at, y = self.guesses(clean, x_t, rows, row_log_probs(logits.detach(), mask=clean.mask))
        share = (y == clean.mask).sum(1) / clean.free.sum(1).clamp(min=1)
        z = network(y, shown_sigma(self.schedule, share), at)[:, clean.mask]
        right = (y == clean.x0).flatten()[at]
        wrong = F.binary_cross_entropy_with_logits(z, right.to(z), reduction="none")
        return Nats(2 * ce + self.quality * spread(wrong, at, y), weight * ce)

    def guesses(
        self, clean: CleanRows, x_t: Int[Tensor, "b l"], rows: Int[Tensor, " n"], log_p: Float[Tensor, "n v"]
    ) -> tuple[Int[Tensor, " m"], Int[Tensor, "b l"]]:
        """The flat positions of tokens that are drawn, 1 to all masks of a row, and the rows with them."""
        hidden, width = x_t == clean.mask, x_t.shape[1]
        turn = torch.where(hidden, -clean.noise.u, torch.inf).argsort(1).argsort(1)
        many = (clean.noise.uniform(1)[:, 0] * hidden.sum(1)).long() + 1
        chosen = (turn < many[:, None]).flatten()[rows]
        at = rows[chosen]
        tokens = inverse_cdf_of(log_p[chosen], clean.noise.uniform(width, use=1).flatten()[at])
        return at, x_t.flatten().index_copy(0, at, tokens).view_as(x_t)
