"""A toy objective in one file: masked-LM losses with a learned weight, and a running mean of what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unmask.diffusion import mdlm
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import OBJECTIVES, Facts, Nats, Objective


class Weight(nn.Module):
    """A learned logarithm of the loss's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(1))


@OBJECTIVES.register("toy-objective")
@dataclass(frozen=True)
class Toy(Objective):
    """The bound of MDLM, minimised as e^-w nats/level + w: w is learned, level is a running mean."""

    facts: ClassVar[Facts] = Facts(optimizer="muon")

    memory: float = 0.5  # how much of the running mean stays at a step

    @property
    def means(self) -> str:
        return "upper bound on -log p, of a toy"

    def parts(self, *, vocab: int, width: int) -> dict[str, nn.Module]:
        return {"weight": Weight()}

    def state(self) -> dict[str, Tensor]:
        return {"level": torch.ones(1), "steps": torch.zeros(1)}

    def nats(self, network: Any, clean: CleanRows) -> Nats:
        x0, parts, state = clean.x0, clean.parts, clean.state
        nats, weight = mdlm.by_count(network, clean)
        bound = weight[:, None] * nats
        if not parts or not state:
            return Nats(bound, bound)
        w = parts["weight"].log
        seen = {"nats": bound.detach().sum()[None], "tokens": torch.full((1,), float(x0.numel()))}
        return Nats(torch.exp(-w) * bound / state["level"] + w, bound, seen)

    def advance(self, state: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        level = self.memory * state["level"] + (1 - self.memory) * seen["nats"] / seen["tokens"]
        return {"level": level, "steps": state["steps"] + 1}

    def log_probs(self, logits: Tensor, x_t: Tensor, *, mask: int) -> Tensor:
        return mdlm.log_probs(logits, x_t, mask=mask)
