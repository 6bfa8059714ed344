"""The optimizer of the objective."""

from dataclasses import dataclass

from unmask.model.learner import Learner
from unmask.training.optim import OPTIMIZERS, Optim, Updates


@OPTIMIZERS.register("auto")
@dataclass(frozen=True)
class Auto(Optim):
    """The optimizer that trains the objective best, its learning rate, and the moving average of the weights."""

    def settled(self, usual: str, *, tuned: bool) -> Optim:
        return OPTIMIZERS.turned(self, usual).settled(usual, tuned=tuned)

    def updates(self, learner: Learner) -> Updates:
        return OPTIMIZERS.turned(self, "adamw").updates(learner)
