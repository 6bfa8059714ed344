"""Text in any order at which price: tokens per second of any-order networks, beside MDLM and an autoregressive model.

    python bench/any_order.py --out docs/records/any_order_speed.json

All have one network, that of `stories` (256 x 6, 2,048 tokens) with random weights: what a token costs does not
depend on what it says. Every writer draws exactly from its own law, one token per call, but `groups`, which draws
several. All write in turns, and times are processor times of one thread, so that a busy machine hits them alike. Long
texts of MDLM slide a window of 128 tokens forward by 64; the others read the whole text from their memory.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import tyro

from unmask.diffusion.objective import OBJECTIVES
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.model import Model
from unmask.sampling.recipe import Method, Recipe, method_for
from unmask.text.prompt.canvas import of_tokens

VOCAB = 2048
WRITERS = {
    "autoregressive": ("ar", {}),
    "MDLM": ("mdlm", {"sampler": "first-hitting"}),
    "any-order": ("any-order", {"sampler": "first-hitting"}),
    "any-order, 4 per call": ("any-order", {"sampler": "groups", "steps": 4}),
    "one stream": ("one-stream", {"sampler": "first-hitting"}),
}


@dataclass(frozen=True)
class Settings:
    rounds: int = 3
    """Texts of each writer; the table has medians."""
    lengths: tuple[int, ...] = (128, 2048)
    """Tokens of a text."""
    rows: tuple[int, ...] = (1, 8)
    """Texts at once; long ones are written one at a time."""
    out: str = ""
    """A file for the record."""


def writer(name: str, length: int) -> Method:
    known, options = WRITERS[name]
    objective = OBJECTIVES.make(known)
    a = Architecture(VOCAB, length=length, width=256, blocks=6, heads=4, tied=True)
    network = Transformer(a.sized(vocab=VOCAB, length=length, causal=objective.facts.causal)).freeze()
    model = Model(network, VOCAB - 1, objective)
    long = {"window": 128, "stride": 64} if known == "mdlm" and length > 128 else {}
    steps = {"steps": length // 4} if "steps" in options else {}
    return method_for(model, Recipe(**{**options, **steps, **long}))  # type: ignore[arg-type]


@torch.inference_mode()
def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = []
    for length in settings.lengths:
        for rows in settings.rows if length <= 128 else settings.rows[:1]:
            writers = {name: writer(name, length) for name in WRITERS}
            begun = torch.full((rows, length), VOCAB - 1)
            begun[:, 0] = 0  # an autoregressive model continues a text
            times: dict[str, list[float]] = {name: [] for name in writers}
            for number in range(settings.rounds):
                for name, method in writers.items():
                    canvas = of_tokens(begun, mask=VOCAB - 1)
                    began = time.process_time()
                    *_, last = method.fill(canvas, seed=number, ids=torch.arange(rows))
                    times[name].append(time.process_time() - began)
                    assert not (last.canvas.tokens == VOCAB - 1).any()
            for name, seconds in times.items():
                ratio = median(base / own for base, own in zip(times["autoregressive"], seconds, strict=True))
                over = median(base / own for base, own in zip(times["MDLM"], seconds, strict=True))
                speed = rows * length / median(seconds)
                table.append({"length": length, "rows": rows, "writer": name, "tokens_per_second": speed})
                table[-1].update(of_autoregressive=ratio, of_mdlm=over)
                shares = f"{ratio:.2f} of AR  {over:.2f} of MDLM"
                print(f"{length} x {rows}  {name:24} {speed:8.1f} tokens/s  {shares}", flush=True)
    if settings.out:
        Path(settings.out).write_text(json.dumps({"rounds": settings.rounds, "table": table}, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
