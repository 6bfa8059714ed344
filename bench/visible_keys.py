"""Visible keys: tokens per second of the same sampler with a network that sees masks, and with one that does not.

    python bench/visible_keys.py --rounds 3 --out docs/records/visible_keys.json

Both networks have the same random weights (time does not depend on what they say). The texts are drawn in turns, so
that a busy moment hits both alike. The ratio is that of the medians of processor time.
"""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
import tyro

from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.sampling.masked import fill
from unmask.sampling.policies.planned import FirstHitting, Groups
from unmask.text.prompt.canvas import blank

SAMPLERS = {"first-hitting": FirstHitting(), "groups, 32 calls": Groups(calls=32)}


@dataclass(frozen=True)
class Settings:
    rounds: int = 3
    """Texts of each kind, drawn in turns."""
    lengths: tuple[int, ...] = (128, 512)
    """Tokens of a text."""
    batches: tuple[int, ...] = (1, 8)
    """Texts drawn at once."""
    out: str = ""
    """A file for the record."""


def network(a: Architecture) -> Transformer:
    torch.manual_seed(0)
    net = Transformer(a)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.05)
    return net.freeze()


def seconds(net: Transformer, policy: FirstHitting | Groups, length: int, batch: int, seed: int) -> float:
    began = time.process_time()
    for _ in fill(net, blank(batch, length, mask=net.spec.vocab - 1), policy, seed=seed):
        pass
    return time.process_time() - began


def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    seen = Architecture(vocab=4096, length=128, width=256, blocks=6, heads=4, cond=0, mask=4095)
    networks = {"all keys": network(seen), "visible keys": network(replace(seen, visible_keys=True))}
    found = []
    for length in settings.lengths:
        for batch in settings.batches:
            for name, policy in SAMPLERS.items():
                taken: dict[str, list[float]] = {kind: [] for kind in networks}
                for number in range(settings.rounds):
                    for kind, net in networks.items():
                        taken[kind].append(seconds(net, policy, length, batch, number))
                speed = {kind: length * batch / median(times) for kind, times in taken.items()}
                ratio = speed["visible keys"] / speed["all keys"]
                found.append(
                    {"length": length, "batch": batch, "sampler": name, "tokens_per_second": speed, "ratio": ratio}
                )
                print(
                    f"{length:4} tokens, {batch} at once, {name:16}",
                    *(f"{k} {v:7.1f}/s" for k, v in speed.items()),
                    f"{ratio:.2f} times",
                )
    if settings.out:
        Path(settings.out).write_text(
            json.dumps({"network": "256 x 6, vocabulary 4096, one thread", "rows": found}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
