"""A small text of known entropy, and small runs on it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.d3pm import D3PM
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.sedd import SEDD
from unmask.diffusion.times import Count
from unmask.model.backbone import build
from unmask.model.backbones.transformer import Architecture
from unmask.model.denoiser import Denoiser
from unmask.text.row import Rows
from unmask.training.optimizers.adamw import AdamW
from unmask.training.phases import phases, spec_of
from unmask.training.settings import Run, Text, Train

LETTERS, LENGTH = 8, 16
MASK = LETTERS


@dataclass(frozen=True)
class Chain:
    """A Markov chain over letters on a circle: mostly one step on, sometimes three; a letter alone tells nothing."""

    step: Tensor  # (K, K)

    @staticmethod
    def make() -> "Chain":
        law = torch.full((LETTERS,), 0.1 / LETTERS)
        law[1] += 0.7
        law[3] += 0.2
        return Chain(torch.stack([law.roll(i) for i in range(LETTERS)]))

    @property
    def stationary(self) -> Tensor:
        return torch.full((LETTERS,), 1 / LETTERS)

    @property
    def unigram(self) -> float:
        """The entropy of a letter alone, nats."""
        return float(torch.special.entr(self.stationary).sum())

    @property
    def entropy(self) -> float:
        """Nats a letter of a row of LENGTH letters."""
        return (self.unigram + (LENGTH - 1) * self.next) / LENGTH

    @property
    def next(self) -> float:
        """The entropy of a letter given the one before."""
        return float((self.stationary * torch.special.entr(self.step).sum(1)).sum())

    def rows(self, count: int, seed: int) -> Tensor:
        g = torch.Generator().manual_seed(seed)
        rows = [torch.multinomial(self.stationary, count, True, generator=g)]
        for _ in range(LENGTH - 1):
            rows.append(torch.multinomial(self.step[rows[-1]], 1, generator=g)[:, 0])
        return torch.stack(rows, 1)

    def batch(self, size: int):
        return lambda step: Rows.of(self.rows(size, step), torch.ones(size, LENGTH, dtype=torch.bool))


def settings(**changes) -> Train:
    base = Train(
        steps=20,
        text=Text(length=LENGTH),
        model=Architecture(width=32, blocks=2, heads=2),
        objective=MDLM(times=Count()),
        optim=AdamW(batch=16, lr=1e-2, warmup=10, ema=0.9),
        run=Run(),
    )
    return replace(base, **changes)


def network(asked: Train, phase: int = 0) -> Denoiser:
    torch.manual_seed(asked.seed)
    chosen = phases(asked)[phase]
    denoiser = Denoiser(build(spec_of(asked, chosen, vocab=LETTERS + 1)), chosen.objective)
    if asked.adapter.rank:
        denoiser.add_adapter(asked.adapter)
    return denoiser


OBJECTIVES = {
    "mdlm": settings(),
    "d3pm": settings(objective=D3PM(steps=16)),
    "sedd": settings(
        objective=SEDD(),
        model=Architecture(width=32, blocks=2, heads=2, cond=16, time_conditioning=True),
    ),
    "ar": settings(objective=Autoregressive()),
}
