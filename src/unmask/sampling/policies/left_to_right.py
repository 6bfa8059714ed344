"""Left to right: the only order of an autoregressive network."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.sampling.policy import POLICIES, Policy, PolicyView


@POLICIES.register("autoregressive", "left to right")
@dataclass(frozen=True)
class LeftToRight(Policy):
    """The leftmost blank, one per call; rows with longer prompts wait, so all rows are at the same position."""

    needs: ClassVar[frozenset[str]] = frozenset({"next token"})
    law: ClassVar[str] = "exact for an autoregressive model"

    def wants(self, view: PolicyView) -> tuple[Bool[Tensor, "b w"], Float[Tensor, " b"]]:
        column = int(view.hidden.any(0).nonzero()[0])
        here = torch.arange(view.hidden.shape[1], device=view.hidden.device) == column
        return view.hidden & here, torch.zeros(len(view.hidden), device=view.hidden.device)
