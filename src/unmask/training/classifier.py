"""Trains the head of a classifier on noisy text; the trunk is fixed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.corruption import hide
from unmask.diffusion.schedule import LogLinear, Schedule
from unmask.diffusion.times import stratified
from unmask.errors import UserError
from unmask.model.classifier import Classifier
from unmask.model.passes.whole import hidden_states
from unmask.training.loop import Gain, updates
from unmask.training.optim import OPTIMIZERS, Optim, Updates


@dataclass(frozen=True)
class Head:
    """Settings of the training."""

    steps: int = 500  # updates of the head
    batch: int = 32  # texts per update
    lr: float = 1e-2  # initial learning rate of AdamW; decays to 0
    seed: int = 0

    @property
    def optim(self) -> Optim:
        """The same as settings of the optimizer."""
        rates = {"lr": self.lr, "schedule": "linear", "warmup": 0, "floor": 0.0, "reference": True}
        return OPTIMIZERS.entry("adamw").make(**rates, batch=self.batch, beta2=0.999, weight_decay=1e-2, clip=0.0)

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise UserError(f"steps and batch must be at least 1; saw {self.steps} and {self.batch}.")
        if not 0 < self.lr < float("inf"):
            raise UserError(f"the learning rate must be a positive number; saw {self.lr}.")


def noisy(
    texts: Sequence[Sequence[int]], t: Float[Tensor, " b"], source: torch.Generator, *, mask: int, schedule: Schedule
) -> tuple[Int[Tensor, "b l"], Float[Tensor, " b"], Int[Tensor, " b"]]:
    """Texts padded to the longest, with tokens hidden as at time t; the noise levels σ, and the lengths."""
    lengths = torch.tensor([len(text) for text in texts])
    tokens = torch.full((len(texts), int(lengths.max())), mask)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
    level = schedule.at(t)
    return hide(tokens, level.hidden, torch.rand(tokens.shape, generator=source), mask=mask), level.sigma, lengths


def train_head(
    classifier: Classifier,
    texts: Sequence[Sequence[int]],
    labels: Sequence[int],
    *,
    mask: int,
    how: Head | None = None,
    schedule: Schedule | None = None,
) -> Iterator[float]:
    """Train the linear layer on text at all noise levels; yields the loss in nats per label after every update."""
    how, schedule = how or Head(), schedule or LogLinear()
    source = torch.Generator().manual_seed(how.seed)
    truth = torch.tensor(labels)
    torch.nn.init.zeros_(classifier.linear.weight)
    torch.nn.init.zeros_(classifier.linear.bias)
    classifier.linear.requires_grad_(True)

    def learn(step: int) -> Gain:
        chosen = torch.randint(len(texts), (how.batch,), generator=source)
        t = stratified(torch.rand(how.batch, generator=source))
        said = judged(classifier, [texts[i] for i in chosen.tolist()], t, source, mask=mask, schedule=schedule)
        loss = F.nll_loss(said, truth[chosen])
        loss.backward()
        return Gain(loss.item(), loss.item(), how.batch)

    for progress in updates(HeadState(classifier, how.optim.updates(classifier)), learn, how.optim, range(how.steps)):
        yield progress.loss
    classifier.requires_grad_(False)


@dataclass(frozen=True)
class HeadState:
    """What an update of the head changes."""

    module: Classifier
    optimizer: Updates


def judged(
    classifier: Classifier,
    texts: Sequence[Sequence[int]],
    t: Float[Tensor, " b"],
    source: torch.Generator,
    *,
    mask: int,
    schedule: Schedule,
) -> Float[Tensor, "b labels"]:
    """log p(label) of noisy texts; no gradient reaches the trunk."""
    tokens, sigma, lengths = noisy(texts, t, source, mask=mask, schedule=schedule)
    device = classifier.table.device
    with torch.no_grad():
        hidden = hidden_states(
            classifier.backbone, tokens.to(device), sigma.float().to(device), lengths=lengths.to(device)
        )
    return classifier.of_hidden(hidden, lengths.to(device)).cpu()


def held_out_accuracy(
    classifier: Classifier,
    texts: Sequence[Sequence[int]],
    labels: Sequence[int],
    *,
    mask: int,
    t: float,
    batch: int = 64,
) -> float:
    """The share of texts, with tokens hidden as at time t, whose most likely label is right."""
    source = torch.Generator().manual_seed(0)
    right = 0
    for first in range(0, len(texts), batch):
        some = texts[first : first + batch]
        said = judged(classifier, some, torch.full((len(some),), t), source, mask=mask, schedule=LogLinear())
        right += int((said.argmax(-1) == torch.tensor(labels[first : first + batch])).sum())
    return right / len(texts)
