"""Left to right: the only order of an autoregressive network."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.sampling.policy import POLICIES, Look, Policy


@POLICIES.register("autoregressive", "left to right")
@dataclass(frozen=True)
class LeftToRight(Policy):
    """The leftmost blank, one per call; rows with longer prompts wait, so all rows are at the same position."""

    process: ClassVar[str] = "autoregressive"
    own: ClassVar[bool] = True

    @property
    def law(self) -> str:
        return "exact for an autoregressive model"

    def wants(self, look: Look) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        column = int(look.hidden.any(0).nonzero()[0])
        here = torch.arange(look.hidden.shape[1], device=look.hidden.device) == column
        return look.hidden & here, torch.zeros(len(look.hidden), device=look.hidden.device)
