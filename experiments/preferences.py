"""Preferences by DPO on a toy task: `stories` comes to prefer sad endings of a sentence, which it finds less likely.

    python experiments/preferences.py --seeds 3 --out docs/records/preferences.json

Trained on some subjects, measured on others: the margin log p(preferred) − log p(other), before and after.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch

import unmask
from unmask.model.model import Model

PREFERRED, OTHER = ("sad", "mad", "mean"), ("happy", "kind", "nice")
TRAINED = ("The cat", "A boy", "Tim", "The bird", "Her mom", "The old man", "A little girl", "The dog")
HELD_OUT = ("The bear", "Lily", "His friend", "The fish", "A big frog", "The king")
Pair = tuple[str, str]  # the preferred text and the other


def pairs_of(subjects: Sequence[str]) -> list[Pair]:
    words = [(good, bad) for good, bad in zip(PREFERRED, OTHER, strict=True)]
    return [
        (f"{subject} was very {good}.", f"{subject} was very {bad}.") for subject in subjects for good, bad in words
    ]


def margins(model: Model, pairs: Sequence[Pair], *, passes: int, seed: int) -> torch.Tensor:
    """log p(preferred) − log p(other) of each pair; one seed, so that both have the same noise."""
    better, worse = (
        unmask.log_likelihood(model, texts, passes=passes, seed=seed) for texts in zip(*pairs, strict=True)
    )
    return better.value - worse.value


def tune(
    model: Model, reference: Model, pairs: Sequence[Pair], *, steps: int, seed: int, beta: float, lr: float
) -> None:
    """DPO: raise the margin above that of the reference, with the noise of both in common."""
    model.network.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        some = [pairs[i] for i in torch.randperm(len(pairs), generator=generator)[:8].tolist()]
        noise = {"passes": 4, "seed": 1000 * seed + step}
        with torch.no_grad():
            level = margins(reference, some, **noise)
        loss = -torch.nn.functional.logsigmoid(beta * (margins(model, some, **noise) - level)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def measured(model: Model, pairs: Sequence[Pair], *, passes: int) -> dict[str, float]:
    margin = margins(model, pairs, passes=passes, seed=0)
    return {
        "margin": float(margin.mean()),
        "standard_error": float(margin.std() / len(margin) ** 0.5),  # over pairs
        "preferred": float((margin > 0).float().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="stories")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--beta", type=float, default=0.3)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--passes", type=int, default=16, help="of the measurements")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    result = {"settings": {**vars(asked), "out": None}, "version": unmask.__version__, "runs": []}
    reference = unmask.load(asked.model)
    result["before"] = measured(reference, pairs_of(HELD_OUT), passes=asked.passes)
    print(f"before: {result['before']}")
    for seed in range(1, asked.seeds + 1):
        model = unmask.load(asked.model)
        tune(model, reference, pairs_of(TRAINED), steps=asked.steps, seed=seed, beta=asked.beta, lr=asked.lr)
        result["runs"].append({"seed": seed, **measured(model, pairs_of(HELD_OUT), passes=asked.passes)})
        print(f"seed {seed}: {result['runs'][-1]}", flush=True)
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
