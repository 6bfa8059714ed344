"""Mending: a finished text is read again, and what was least likely when it was written is written anew.

A token that came early was chosen with little around it. When all the others stand, the network sees both sides of
it: a word that does not exist, or a sentence that ends in another one, is where it was least sure. An autoregressive
model cannot go back.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.diffusion.times import check_total
from unmask.errors import UserError
from unmask.sampling.dice import Dice
from unmask.sampling.order import Ordered, best
from unmask.sampling.policy import Look, Memory


@dataclass(frozen=True)
class Mend(Ordered):
    """The surest positions first, one a call; then, `rounds` times, the share η least likely when written, anew.

    Blanks of a few tokens, of which η is less than half a token, are not mended.
    """

    rounds: int = 8
    eta: float = 0.12  # η

    def __post_init__(self) -> None:
        super().__post_init__()
        check_total(self.rounds)
        if not 0 <= self.eta <= 1:
            raise UserError(f"the share η of tokens written anew must lie in 0..1; saw {self.eta}.")

    @property
    def law(self) -> str:
        return f"approximate (the model chooses the order; {self.rounds} times the least likely {self.eta:.0%} anew)"

    def plan(self, hidden: Bool[Tensor, "b w"], dice: Dice) -> Memory:
        """(blanks at the start (b), rounds begun (b), log-probability of each token when it was written (b w))."""
        (blanks,) = super().plan(hidden, dice)
        return blanks, torch.zeros_like(blanks), torch.zeros(hidden.shape, dtype=torch.float64, device=hidden.device)

    def revise(
        self, look: Look, rows: Int[Tensor, " n"], log_probs: Float[Tensor, " n"]
    ) -> tuple[Bool[Tensor, "b w"], Memory]:
        """Once nothing is hidden the next round begins."""
        blanks, begun, written = look.memory
        written = written.flatten().index_copy(0, rows, log_probs.double()).view_as(written)
        ready = ~look.hidden.any(1) & (begun < self.rounds)
        many = torch.where(ready, (self.eta * blanks).round().long(), 0)
        again = best(look, torch.where(look.free, -written, -torch.inf), many)
        return again, (blanks, begun + ready.long(), written)
