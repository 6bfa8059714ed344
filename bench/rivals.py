"""A training step of the continuous rivals against an MDLM step of the same trunk whose head runs everywhere.

    python bench/rivals.py

The kinds take turns in one process, one step each, and the figures are medians: what else the machine does hits all
alike. Plaid must compute logits at every position, so it is compared with an MDLM step that does so too; plain MDLM,
with logits at the hidden positions only, is what users train.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import torch

from unmask.diffusion.diffusion_lm import DiffusionLM
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.objective import Objective
from unmask.diffusion.plaid import Plaid
from unmask.diffusion.ssd_lm import SSDLM
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.denoiser import Denoiser
from unmask.model.passing import Pass, States
from unmask.text.row import Rows
from unmask.training.loop import begin, train
from unmask.training.optimizers.adamw import AdamW
from unmask.training.phases import phases
from unmask.training.settings import Text, Train

SHAPE, ROWS, ROUNDS = Architecture(2049, length=128, width=256, blocks=6, heads=4), 16, 9


class Everywhere:
    """A network whose head runs at every position, whichever rows are asked for."""

    def __init__(self, transformer: Transformer) -> None:
        self.plain, self.head, self.wanted = transformer.run, transformer.head, torch.zeros(0)
        transformer.run, transformer.head = self.run, self.head_of_asked  # type: ignore[method-assign]

    def run(self, p: Pass) -> States:
        assert p.wanted is not None
        self.wanted = p.wanted
        return self.plain(replace(p, wanted=torch.arange(p.x.numel())))

    def head_of_asked(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(hidden)[self.wanted]


def steps(objective: Objective, *, everywhere: bool = False) -> Iterator[float]:
    """Seconds of each step of a loop."""
    asked = Train(
        steps=10**6,
        recipe="plain",
        text=Text(length=SHAPE.length),
        model=SHAPE,
        objective=objective,
        optim=AdamW(lr=1e-3, batch=ROWS, ema=0.9999),
    )
    network = Transformer(SHAPE)
    if everywhere:
        Everywhere(network)
    real = torch.ones(ROWS, SHAPE.length, dtype=torch.bool)
    tokens = torch.randint(SHAPE.vocab - 1, (ROWS, SHAPE.length), generator=torch.Generator().manual_seed(0))
    state = begin(Denoiser(network, objective), asked)
    for progress in train(state, phases(asked)[0], asked, lambda _: Rows.of(tokens, real), mask=SHAPE.vocab - 1):
        yield progress.seconds


def main() -> None:
    kinds = {
        "MDLM, logits everywhere": steps(MDLM(), everywhere=True),
        "MDLM, logits where hidden": steps(MDLM()),
        "Plaid": steps(Plaid()),
        "Diffusion-LM": steps(DiffusionLM()),
        "SSD-LM": steps(SSDLM()),
    }
    began, seconds = time.perf_counter(), {name: list[float]() for name in kinds}
    for name, kind in kinds.items():
        next(kind)  # the first step allocates
        seconds[name] = []
    for _ in range(ROUNDS):
        for name, kind in kinds.items():
            seconds[name].append(next(kind))
    like = median(seconds["MDLM, logits everywhere"])
    for name, found in seconds.items():
        print(f"{name:28s} {1000 * median(found):7.0f} ms   {median(found) / like:5.2f} x")
    print(f"{ROUNDS} rounds in turn, {ROWS} rows of {SHAPE.length}, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
