"""Clean rows of text, with all that an objective needs to measure them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from unmask.diffusion.corruption import check_clean
from unmask.random import Noise

NO_NOISE = Noise(torch.empty(0), torch.empty(0, 0))  # of an objective that draws no random numbers


@dataclass(frozen=True)
class CleanRows:
    """What `Objective.nats` measures. Rows that are empty or hold the mask are refused."""

    x0: Int[Tensor, "b l"]
    noise: Noise = NO_NOISE
    mask: int = field(kw_only=True)
    frozen: Bool[Tensor, "b l"] | None = None  # tokens that are given: never hidden, with loss 0
    parts: Mapping[str, nn.Module] = field(default_factory=dict)  # the objective's learned modules
    state: Mapping[str, Tensor] = field(default_factory=dict)  # the objective's state

    def __post_init__(self) -> None:
        check_clean(self.x0, mask=self.mask)

    def to(self, device: torch.device) -> "CleanRows":
        frozen = None if self.frozen is None else self.frozen.to(device)
        return replace(self, x0=self.x0.to(device), noise=self.noise.to(device), frozen=frozen)

    @property
    def free(self) -> Bool[Tensor, "b l"]:
        """The tokens that are not given."""
        return torch.ones_like(self.x0, dtype=torch.bool) if self.frozen is None else ~self.frozen
