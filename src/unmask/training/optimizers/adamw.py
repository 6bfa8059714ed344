"""AdamW."""

from dataclasses import dataclass
from typing import ClassVar

from unmask.model.learner import Learner
from unmask.training.optim import OPTIMIZERS, AdamWUpdates, Optim, Updates


@OPTIMIZERS.register("adamw")
@dataclass(frozen=True)
class AdamW(Optim):
    """Optimizer AdamW, its learning rate, and the moving average of the weights."""

    rate: ClassVar[float] = 1e-3

    def updates(self, learner: Learner) -> Updates:
        return AdamWUpdates(learner, self)
