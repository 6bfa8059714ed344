"""Masked language modelling: predict a share of the tokens from the rest of the row. [BERT]

Of the chosen tokens most become the mask, some a random token, some stay: the network then also meets text without
masks, as it does when it is fine-tuned. The loss is neither −log p nor a bound on it, because only one share of masks
is ever seen. A network trained with it still predicts hidden tokens from visible ones, so `bounded` measures it as a
masked diffusion model, and `--init` goes on from its weights with any objective.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective
from unmask.diffusion.rows import row_nats, rows_where, spread
from unmask.diffusion.times import Count
from unmask.errors import UserError
from unmask.shapes import Network


class Ids(nn.Module):
    """All ids of the network, to draw random tokens from; it holds no tensor."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab = vocab

    def forward(self, u: Float[Tensor, "b l"]) -> Int[Tensor, "b l"]:
        """A token for each uniform; special ones and the mask are as likely as any other, as in BERT."""
        return (u * self.vocab).long()


def replace_chosen(
    x0: Int[Tensor, "b l"],
    kind: Float[Tensor, "b l"],
    drawn: Int[Tensor, "b l"] | None,
    *,
    mask: int,
    masked: float,
    random: float,
) -> Int[Tensor, "b l"]:
    """Tokens by a uniform each: below `masked` the mask, below `masked + random` the drawn token, else itself."""
    rest = x0 if drawn is None else torch.where(kind < masked + random, drawn, x0)
    return torch.where(kind < masked, mask, rest)


@OBJECTIVES.register("mlm", "masked language modelling as in BERT: a fixed share of masks, no likelihood")
@dataclass(frozen=True)
class MLM(Objective):
    """The masked-language-model loss: nats per chosen token.

    The defaults are those of BERT and Caduceus; MosaicBERT has rate = 0.3, masked = 1 and random = 0.
    """

    facts: ClassVar[Facts] = Facts(likelihood=False, asked=0.15)

    rate: float = 0.15  # share of the tokens that are chosen and predicted
    masked: float = 0.8  # share of the chosen tokens that become the mask
    random: float = 0.1  # share of the chosen tokens that become a random token; the rest stay

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise UserError(
                f"rate, the share of tokens that are predicted, must be above 0 and at most 1: {self.rate}."
            )
        if self.masked <= 0 or self.random < 0 or self.masked + self.random > 1 + 1e-9:
            raise UserError(
                f"masked and random are shares of the chosen tokens, with masked above 0 and a sum of at most 1; saw "
                f"masked = {self.masked}, random = {self.random}."
            )

    @property
    def means(self) -> str:
        stay = max(0.0, 1 - self.masked - self.random)
        mix = f"{self.masked:.0%} masks, {self.random:.0%} random, {stay:.0%} unchanged"
        return f"masked-language-model loss per predicted token, {self.rate:.0%} of them ({mix}); not a likelihood"

    def estimators(self) -> Mapping[str, Objective]:
        return {self.name: self, "count": MDLM(times=Count())}

    def parts(self, *, vocab: int, width: int) -> dict[str, nn.Module]:
        return {"ids": Ids(vocab)} if self.random else {}

    def nats(self, network: Network, clean: CleanRows) -> Nats:
        """Nats at the chosen tokens, divided by `rate`: their mean over all tokens is that over the chosen ones."""
        x0, noise, mask = clean.x0, clean.noise, clean.mask
        chosen = (noise.u < self.rate) & clean.free
        drawn = None
        if self.random:
            if "ids" not in clean.parts:
                raise ValueError("random tokens are drawn from the ids of the network: give parts")
            drawn = clean.parts["ids"](noise.uniform(x0.shape[1]))
        # A uniform below the rate, divided by it, is uniform again.
        kind = torch.where(chosen, noise.u / self.rate, 1.0)
        x = replace_chosen(x0, kind, drawn, mask=mask, masked=self.masked, random=self.random)
        x = torch.where(chosen, x, x0)
        rows = rows_where(chosen)
        logits = network(x, noise.u.new_zeros(len(x0)), rows)
        nats = spread(row_nats(logits, x0.flatten()[rows], mask=mask), rows, x0) / self.rate
        return Nats(nats, nats)
