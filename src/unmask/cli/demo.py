"""See text dissolve into masks, the process that a model learns to run backwards."""

from dataclasses import dataclass

import torch

from unmask.diffusion.corruption import hide
from unmask.diffusion.schedule import LogLinear

TEXT = (
    "Text is hidden token by token until nothing but masks is left , and a network learns to bring it back . "
    "What it learns is to write : begin with masks alone , and reveal one word after the other , in any order ."
)


@dataclass(frozen=True)
class Settings:
    seed: int = 0  # which words go first
    steps: int = 8  # how many moments to show


def run(settings: Settings) -> None:
    words = TEXT.split()
    generator = torch.Generator().manual_seed(settings.seed)
    u = torch.rand(1, len(words), generator=generator, dtype=torch.float64)
    tokens, mask = torch.arange(len(words))[None], len(words)
    for t in torch.linspace(0, 1, settings.steps, dtype=torch.float64):
        level = LogLinear(eps=0.0).at(t[None])
        x_t = hide(tokens, level.hidden, u, mask=mask)[0].tolist()
        shown = " ".join("_" * len(words[i]) if token == mask else words[i] for i, token in enumerate(x_t))
        print(f"t = {float(t):.2f}, {float(level.alpha[0]):4.0%} visible\n  {shown}\n")
    print("Next: docs/why/maths.md says how the way back is learnt; `unmask doctor` looks at this machine.")
