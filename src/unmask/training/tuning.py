"""Training a head to classify texts, or to predict a number: its settings, and `tune`, the loop with its batches.

The whole network is trained with the head; a head that guides sampling is trained alone, on noisy text.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.corruption import hide
from unmask.diffusion.schedule import LogLinear
from unmask.errors import UserError
from unmask.model.answer import Answer
from unmask.model.backbone import build
from unmask.model.model import Model
from unmask.model.predictor import Predictor
from unmask.model.reading import Encoded, Reading, TextBatch, Trained
from unmask.processes.device import Device, Dtype, compute_type, device_of
from unmask.random import Noise, permute_places, seed_of, stream
from unmask.settings import at_least, check_shares
from unmask.text.corpus.examples import Columns
from unmask.training import noise
from unmask.training.loop import Batch, Progress, State, UpdatePlan, updates
from unmask.training.optim import OPTIMIZERS, Optim
from unmask.training.split import Split

LARGEST = 1 << 62  # JSON, numpy and torch hold every seed below it
WEIGHTS, STRANDS, NOISE = 0, 2, 3  # uses of random numbers that must not share any; dropout is 1


@dataclass(frozen=True)
class Tune:
    """How the whole network is fine-tuned."""

    epochs: float = 3.0  # passes over the training texts
    steps: int = 0  # updates of the weights; 0: by the epochs
    batch: int = 32  # texts per update
    micro: int = 0  # texts per forward pass; 0: all of an update
    lr: float = 3e-4  # peak learning rate
    optimizer: str = "adamw"  # adamw, muon
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # learning rate after the warm-up
    warmup: float = 0.1  # share of the updates that are a linear warm-up
    floor: float = 0.0  # share of lr at the last update, for linear and cosine
    beta2: float = 0.999  # decay of AdamW's mean squared gradient
    weight_decay: float = 0.01  # weight decay, on matrices only
    clip: float = 1.0  # largest gradient norm; 0: no clipping
    dropout: float = 0.1  # dropout probability in the network and on the vector of a text
    scratch: bool = False  # begin with new weights: what the pre-training is worth
    eval_every: int = 0  # updates between validations; 0: after every epoch
    save_every: int = 500  # updates between checkpoints, besides those at validations
    keep: Literal["best", "last"] = "best"  # which weights are kept: of the best validation, or the last ones

    def __post_init__(self) -> None:
        at_least(1, save_every=self.save_every)
        at_least(0, steps=self.steps, eval_every=self.eval_every)
        check_shares(warmup=self.warmup)
        self.optim(1)  # checks the rest
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be at least 0 and less than 1, not {self.dropout}.")
        if not self.steps and not 0 < self.epochs < math.inf:
            raise UserError(f"epochs must be a number above 0, not {self.epochs}; or give --steps.")

    def updates(self, texts: int) -> int:
        return self.steps or max(1, math.ceil(self.epochs * self.per_epoch(texts)))

    def per_epoch(self, texts: int) -> int:
        return math.ceil(texts / self.batch)

    def optim(self, steps: int) -> Optim:
        """The same as settings of the optimizer."""
        same = ("batch", "micro", "lr", "schedule", "floor", "beta2", "weight_decay", "clip")
        values = {name: getattr(self, name) for name in same}
        return OPTIMIZERS.entry(self.optimizer).make(**values, warmup=round(self.warmup * steps), ema=0.0)


@dataclass(frozen=True)
class Tuning:
    """A whole run."""

    model: str = ""
    data: str = ""
    out: str = ""
    guide: bool = False  # train the head alone, on noisy text, to guide sampling
    number: bool = False  # predict a number, not a class
    metrics: tuple[str, ...] = ()  # scores to report, the one that decides first; none: those of the task
    seeds: int = 1  # trials with different seeds: mean, deviation and range are printed
    seed: int = 1  # the first seed: of the held-out part, the head, the order of the texts and the dropout
    columns: Columns = field(default_factory=Columns)
    split: Split = field(default_factory=Split)
    reading: Reading = field(default_factory=Reading)
    tune: Tune = field(default_factory=Tune)
    device: Device = "auto"
    dtype: Dtype = "auto"

    def __post_init__(self) -> None:
        at_least(1, seeds=self.seeds)
        at_least(0, seed=self.seed)
        if self.seed + self.seeds > LARGEST:
            raise UserError(f"seeds must be less than {LARGEST}; saw {self.seed} as the first of {self.seeds}.")
        if self.guide and (self.number or self.columns.pair or self.tune.scratch):
            raise UserError(
                "--guide takes no --number, --pair or --scratch: it trains a classifier of single texts on the model."
            )


@dataclass(frozen=True)
class Lesson:
    """What is learned from: texts as ids, and their targets."""

    rows: Sequence[Encoded]
    targets: Float[Tensor, " n"]


def begin_tuning(
    model: Model, answer: Answer, asked: Tuning, plan: UpdatePlan, trained: Trained | None = None
) -> State[Predictor]:
    """The state before the first update: the model's weights, or new ones, and a new head."""
    how, place = asked.tune, device_of(asked.device)
    torch.manual_seed(seed_of(plan.seed, WEIGHTS))
    network = build(replace(model.spec, dropout=how.dropout))
    if not how.scratch:
        network.load_state_dict(model.network.state_dict())
    network.compute = compute_type(asked.dtype, place)
    torch.manual_seed(seed_of(plan.seed, WEIGHTS, 1))  # the same head, whatever the network drew
    whole = replace(model, network=network, new_head=model.new_head or how.scratch)
    predictor = Predictor(whole, answer, asked.reading, dropout=how.dropout, trained=trained)
    predictor.train().requires_grad_(True).to(place)
    network.requires_grad_(not asked.guide)
    return State(predictor, plan.optim.updates(predictor))


def chosen_texts(step: int, texts: int, how: Tune, *, seed: int) -> Int[np.ndarray, " b"]:
    """The texts of an update: every epoch has each text once, in an order of its own; its last batch may be small."""
    epoch, place = divmod(step, how.per_epoch(texts))
    places = np.arange(place * how.batch, min((place + 1) * how.batch, texts))
    return permute_places(places, texts, seed=seed, epoch=epoch)


def tune(state: State[Predictor], lesson: Lesson, asked: Tuning, plan: UpdatePlan) -> Iterator[Progress]:
    """Train as planned. The loss is in nats per label, or in units of the numbers' spread."""
    predictor, seed = state.learner, plan.seed
    strands, device = predictor.reading.strands, predictor.backbone.device

    def batch(step: int) -> Batch:
        some = chosen_texts(step, len(lesson.rows), asked.tune, seed=seed)
        flips = (stream(seed, STRANDS, row=step).random(len(some)) < 0.5) & strands.startswith("augment")
        drawn = noise.draw(len(some), predictor.reading.length, seed=seed, step=step, use=NOISE)

        def inputs(part: slice) -> dict[str, Any]:
            rows = [lesson.rows[i] for i in some[part]]
            batches = [predictor.batch(rows, flips[part].tolist())]
            if strands == "both":
                batches.append(predictor.batch(rows, [True] * len(rows)))
            targets = lesson.targets[some[part]].to(device)
            if not asked.guide:
                return {"strands": [one.to(device) for one in batches], "targets": targets}
            hidden, sigma = noisy(batches[0], drawn.rows(part), mask=predictor.model.mask)
            return {"strands": [hidden.to(device)], "targets": targets, "sigma": sigma.to(device)}

        return Batch(len(some), torch.tensor(len(some), device=device), inputs)

    return updates(state, batch, plan)


def noisy(batch: TextBatch, drawn: Noise, *, mask: int) -> tuple[TextBatch, Float[Tensor, " b"]]:
    """Rows with tokens hidden as at their times, of all shares alike, and their noise levels σ."""
    level = LogLinear().at(drawn.t)
    hidden = hide(batch.tokens, level.hidden, drawn.u[:, : batch.tokens.shape[1]], mask=mask)
    return batch._replace(tokens=hidden), level.sigma.float()


@torch.no_grad()
def accuracy_when_hidden(predictor: Predictor, lesson: Lesson, share: float, batch: int) -> float:
    """The share of right labels of texts of which a share of the tokens is hidden."""
    right, device = 0, predictor.eval().backbone.device
    for low in range(0, len(lesson.rows), batch):
        rows, targets = lesson.rows[low : low + batch], lesson.targets[low : low + batch]
        drawn = noise.draw(len(rows), predictor.reading.length, seed=0, step=low, use=NOISE)
        drawn = Noise(torch.full((len(rows),), share), drawn.u)
        hidden, sigma = noisy(predictor.batch(rows), drawn, mask=predictor.model.mask)
        outputs = predictor.judge(hidden.to(device), sigma=sigma.to(device))
        right += int((outputs.argmax(-1).cpu() == targets).sum())
    return right / len(lesson.rows)
