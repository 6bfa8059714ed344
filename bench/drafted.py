r"""Drafts for the shipped stories-ar: tokens per second with and without a model that proposes the next tokens.

    unmask train --data DATA/tinystories --out runs/drafter --tokenizer src/unmask/shipped/stories --model.width 128 \
      --objective.name any-order --objective.left 0.5 --objective.ramp 0 --model.blocks 2 --model.heads 2 \
      --model.tied --steps 500 --optim.batch 16
    python bench/drafted.py --drafter runs/drafter --out docs/records/drafted.json

All settings draw the same texts in turns, so that a busy moment hits them alike; times are processor times of one
thread. The texts must be equal, token for token, and the script ends if they are not.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from unmask.model.checkpoint import load
from unmask.model.model import shipped_models
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import of_tokens


@dataclass(frozen=True)
class Settings:
    drafter: str
    """A model of the tokenizer of stories."""
    texts: int = 4
    """Calls of each setting."""
    rows: int = 1
    """Texts of a call."""
    length: int = 128
    """Tokens of a text."""
    drafts: tuple[int, ...] = (1, 2, 4)
    """Numbers of proposals."""
    top_p: tuple[float, ...] = (1.0, 0.85)
    """Shares of the probability that are drawn from."""
    out: str = ""
    """A file for the record."""


@torch.inference_mode()
def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    model = load(shipped_models()["stories-ar"])
    begins = torch.full((settings.rows, settings.length), model.mask)
    begins[:, 0] = model.text_tokenizer().eos
    canvas, found = of_tokens(begins, mask=model.mask), []
    for top_p in settings.top_p:
        recipes = {0: Recipe(plain=True, top_p=top_p)}
        for drafts in settings.drafts:
            recipes[drafts] = Recipe(plain=True, top_p=top_p, drafter=settings.drafter, drafts=drafts)
        methods = {drafts: method_for(model, recipe) for drafts, recipe in recipes.items()}
        taken, passes = dict.fromkeys(methods, 0.0), dict.fromkeys(methods, 0)
        for number in range(settings.texts):
            texts = []
            for drafts, method in methods.items():
                began = time.process_time()
                *_, last = method.fill(canvas, seed=number, ids=torch.arange(settings.rows))
                taken[drafts] += time.process_time() - began
                passes[drafts] += last.call
                texts.append(last.canvas.tokens)
            if not all(torch.equal(text, texts[0]) for text in texts):
                raise SystemExit(f"seed {number}: the texts with drafts differ from those without")
        drawn = settings.texts * settings.rows * (settings.length - 1)
        for drafts, seconds in taken.items():
            row = {"top_p": top_p, "drafts": drafts, "tokens_per_second": drawn / seconds}
            ratio, each = taken[0] / seconds, drawn / settings.rows / passes[drafts]
            found.append({**row, "ratio": ratio, "tokens_per_pass": each})
            print(*(f"{name} {value:.3f}" for name, value in found[-1].items()), flush=True)
    if settings.out:
        about = {"texts": settings.texts, "rows": settings.rows, "length": settings.length}
        Path(settings.out).write_text(json.dumps({**about, "table": found}, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
