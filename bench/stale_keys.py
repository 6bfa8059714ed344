"""Caches of stale keys on the shipped stories: tokens per second, and what an autoregressive judge says of the texts.

    python bench/stale_keys.py --texts 4 --out docs/records/stale_keys.json

All settings draw in turns, so that a busy moment hits them alike; times are processor times of one thread. The judge
is `stories-ar`: nats per token of the texts, and the entropy of their tokens beside it: dull text is judged well.
"""

import json
import math
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from unmask.model.checkpoint import load
from unmask.model.model import shipped_models
from unmask.sampling.process import run
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import blank

CACHES = (None, "interval:every=1", "interval:every=4", "interval:every=16", "dual:every=16")


@dataclass(frozen=True)
class Settings:
    texts: int = 4
    """Texts of each setting, one at a time."""
    length: int = 128
    """Tokens of a text."""
    out: str = ""
    """A file for the record."""


@torch.inference_mode()
def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    model, judge = load(shipped_models()["stories"]), load(shipped_models()["stories-ar"])
    taken: dict[str | None, float] = dict.fromkeys(CACHES, 0.0)
    texts: dict[str | None, list[torch.Tensor]] = {cache: [] for cache in CACHES}
    for number in range(settings.texts):
        for cache in CACHES:
            method = method_for(model, Recipe(sampler="first-hitting", plain=True, cache=cache))
            began = time.process_time()
            *_, last = run(method.process, model.network, blank(1, settings.length, mask=model.mask), seed=number)
            taken[cache] += time.process_time() - began
            texts[cache].append(last.canvas.tokens)
    found = []
    for cache, seconds in taken.items():
        drawn = torch.cat(texts[cache])
        log_p = judge.log_probs(drawn)[:, :-1].gather(-1, drawn[:, 1:, None])
        counts = Counter(drawn.flatten().tolist())
        entropy = -sum(n / drawn.numel() * math.log(n / drawn.numel()) for n in counts.values())
        speed = drawn.numel() / seconds
        ratio = speed * taken[None] / drawn.numel()
        same = float((drawn == torch.cat(texts[None])).float().mean())
        found.append(
            {
                "cache": cache or "none",
                "tokens_per_second": speed,
                "ratio": ratio,
                "judge": -float(log_p.mean()),
                "entropy": entropy,
                "tokens_as_without": same,
            }
        )
        print(*(value if isinstance(value, str) else f"{name} {value:.3f}" for name, value in found[-1].items()))
    if settings.out:
        Path(settings.out).write_text(
            json.dumps({"texts": settings.texts, "length": settings.length, "rows": found}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
