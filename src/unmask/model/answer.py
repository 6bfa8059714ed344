"""Answer: what is predicted of a text, a label or a number. It is an objective whose learned part is a head.

Its loss is minimised by the loop that trains everything: nats per label, or squared errors in units of the spread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UserError

SPREAD = 0.02  # standard deviation of a new head's weights


class Prediction(NamedTuple):
    """The answer to a text."""

    label: str | None  # the most likely label; None: a number is predicted
    probabilities: dict[str, float]  # of every label
    number: float | None = None


@dataclass(frozen=True)
class Answer:
    """What is predicted: one of some labels, or a number."""

    labels: tuple[str, ...] = ()  # in order; none: a number
    center: float = 0.0  # mean of the numbers in training
    spread: float = 1.0  # their standard deviation

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            raise UserError("labels must differ from each other.")
        if not 0 < self.spread < np.inf or not np.isfinite(self.center):
            raise UserError(f"the numbers' mean and spread must be finite; saw {self.center} and {self.spread}.")

    @property
    def outputs(self) -> int:
        return len(self.labels) or 1

    @property
    def kind(self) -> str:
        return "numbers" if not self.labels else "two classes" if len(self.labels) == 2 else "several classes"

    def parts(self, width: int, *, pooler: bool) -> dict[str, nn.Module]:
        """New learned parts: the head, made first so that it is the same with every pooling, and perhaps a pooler."""
        parts: dict[str, nn.Module] = {"head": new_layer(width, self.outputs)}
        return parts | ({"pooler": new_layer(width, width)} if pooler else {})

    def losses(self, outputs: Float[Tensor, "b k"], targets: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Of each row: nats of the label, or the squared error in units of the spread."""
        if self.labels:
            return F.cross_entropy(outputs, targets.long(), reduction="none")
        return (outputs[:, 0] - (targets - self.center) / self.spread).square()

    def values(self, outputs: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Probabilities of the labels, or numbers."""
        return outputs.softmax(-1) if self.labels else outputs * self.spread + self.center

    def decisions(self, values: np.ndarray) -> np.ndarray:
        """Of each row of values the number of the most likely label, or the number that was predicted."""
        return values.argmax(1) if self.labels else values[:, 0]

    def prediction(self, values: Sequence[float]) -> Prediction:
        """The values of one text in words."""
        if not self.labels:
            return Prediction(None, {}, values[0])
        return Prediction(self.labels[int(np.argmax(values))], dict(zip(self.labels, values, strict=True)))

    def target(self, label: str, where: str = "") -> float:
        """A label as its number in the list of labels, or as the number that it is."""
        if not self.labels:
            return number_of(label, where)
        if label not in self.labels:
            place = f"{where}: " if where else ""
            raise UserError(f"{place}the label {label!r} was not in the training data: {', '.join(self.labels)}.")
        return self.labels.index(label)


def is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def number_of(label: str, where: str) -> float:
    if not is_number(label) or not np.isfinite(float(label)):
        raise UserError(f"{where}: the label {label!r} is not a number; leave out --number for classes.")
    return float(label)


def new_layer(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=SPREAD)
    nn.init.zeros_(layer.bias)
    return layer
