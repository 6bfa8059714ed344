"""One page of numbers: what takes how long, beside bare matrix products of the same shapes, and a record of it.

    python bench/page.py                       the page: some minutes
    python bench/page.py --out old.json        and a record of it
    python bench/compare.py old.json new.json  what became slower or faster since

Every number is a median over rounds; in each round every job is timed once, so that a busy moment hits all alike. The
last column is the time of a job divided by that of its products in the same round: it hardly depends on the machine,
and is what `compare.py` compares.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import tyro

from block import random_network
from compare import ratios
from train_step import ours as our_steps
from train_step import textbook as textbook_steps
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.evaluation.record import machine
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.passes.whole import logits_at
from unmask.sampling.autoregressive import AutoregressiveProcess
from unmask.sampling.blockwise import Blockwise
from unmask.sampling.masked import Masked
from unmask.sampling.process import Process, answer
from unmask.text.prompt.canvas import blank, of_tokens
from unmask.training.noise import draw
from unmask.training.optimizers.muon import Muon

SMALL = Architecture(vocab=4097, length=128, width=256, blocks=6, heads=4, cond=128, dropout=0.1)
TINY = Architecture(vocab=1024, length=128, width=128, blocks=4, heads=4)
WRITER = Architecture(vocab=2048, length=128, width=256, blocks=6, heads=4, tied=True, reads_before=True)


@dataclass(frozen=True)
class Settings:
    rounds: int = 9
    """How often every job is timed."""
    only: str = ""
    """Only the jobs whose name contains this."""
    processor: bool = False
    """Measure processor time: on a busy machine, with one thread (OMP_NUM_THREADS=1)."""
    out: Path | None = None
    """Write a record: every time of every job, and the machine."""


@dataclass(frozen=True)
class Job:
    """Something that is timed, with the matrix products that it cannot do without."""

    run: Callable[[], Any]  # returns seconds, or anything else: then it is timed from outside
    products: Callable[[], Any]


def products_of(a: Architecture, tokens: int, *, rows: int | None = None, passes: int = 1) -> Callable[[], None]:
    """The products of a forward pass over so many tokens, and of its head at some rows; `passes` 3: and backward.

    Each block has weights of its own, as in a network: they do not all stay in the processor's nearest cache.
    """
    d = a.width
    x, h = torch.randn(tokens, d), torch.randn(tokens, 4 * d)
    last = torch.randn(tokens if rows is None else rows, d)
    shapes = ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d))
    weights = [torch.randn(n, m) for _ in range(a.blocks) for n, m in shapes]
    head = torch.randn(d, a.vocab)

    def run() -> None:
        for _ in range(passes):
            for weight in weights:
                torch.mm(h if len(weight) > d else x, weight)
            torch.mm(last, head)

    return run


def call(a: Architecture, batch: int) -> Job:
    """One call of a sampler: a forward pass with the logits at every other position."""
    network, mask = random_network(a), a.vocab - 1
    tokens = torch.randint(mask, (batch, a.length))
    tokens[:, ::2] = mask
    rows = (tokens == mask).flatten().nonzero().squeeze(1)
    sigma = torch.zeros(batch)

    @torch.inference_mode()
    def run() -> None:
        logits_at(network, tokens, sigma, rows)

    return Job(run, products_of(a, batch * a.length, rows=len(rows)))


def text(network: Transformer, process: Process, tokens: int, *, seen: int, given: int = 0) -> Job:
    """Some tokens of one text, a call each, in which the network reads `seen` tokens."""
    a, mask = network.spec, network.spec.vocab - 1

    @torch.inference_mode()
    def run() -> float:
        canvas = blank(1, tokens, mask=mask)
        if given:
            before = torch.randint(mask, (1, given))
            canvas = of_tokens(torch.cat([before, torch.full((1, tokens), mask)], 1), mask=mask)
        state, began = process.begin(canvas, seed=1), time.perf_counter()
        while (asked := process.ask(state)) is not None:
            state, _ = process.commit(state, asked, answer(network, asked))
        return time.perf_counter() - began

    return Job(run, products_of(a, seen, rows=1, passes=tokens))


def evaluation(a: Architecture, batch: int) -> Job:
    """The bound of some rows, one pass."""
    network, objective = random_network(a), MDLM().precise()
    rows, noise = torch.randint(a.vocab - 1, (batch, a.length)), draw(batch, a.length, seed=1, step=0)

    @torch.inference_mode()
    def run() -> None:
        objective.nats(partial(logits_at, network), CleanRows(rows, noise=noise, mask=a.vocab - 1))

    return Job(run, products_of(a, batch * a.length, rows=batch * a.length // 2))


def steps(made: Callable[..., Any], a: Architecture, batch: int) -> Job:
    """A training step."""
    running = made(a, batch)
    return Job(lambda: next(running), products_of(a, batch * a.length, rows=batch * a.length // 2, passes=3))


# Each job by name, made when it is needed: networks and their moments take memory.
JOBS: dict[str, Callable[[], Job]] = {
    "training step, 128 x 4": lambda: steps(our_steps, TINY, 16),
    "training step, 128 x 4, muon": lambda: steps(partial(our_steps, kind=Muon), TINY, 16),
    "training step, 256 x 6": lambda: steps(our_steps, SMALL, 32),
    "training step, 256 x 6, muon": lambda: steps(partial(our_steps, kind=Muon), SMALL, 32),
    "textbook's step, 256 x 6": lambda: steps(textbook_steps, SMALL, 32),
    "a call, batch 1": lambda: call(WRITER, 1),
    "a call, batch 32": lambda: call(WRITER, 32),
    "the bound of 32 rows": lambda: evaluation(WRITER, 32),
    "64 tokens, first-hitting": lambda: text(random_network(WRITER), Masked(), 64, seen=64),
    "64 tokens, autoregressive": lambda: text(
        random_network(replace(WRITER, causal=True)), AutoregressiveProcess(cached=True), 64, seen=1, given=1
    ),
    "64 tokens, blocks of 4": lambda: text(random_network(WRITER), Blockwise(4, 128), 64, seen=4),
}


def seconds(run: Callable[[], Any], *, processor: bool = False) -> float:
    clock = time.process_time if processor else time.perf_counter
    began = clock()
    said = run()
    return said if isinstance(said, float) and not processor else clock() - began


def measured(settings: Settings) -> dict[str, dict[str, list[float]]]:
    """Seconds of every job and of its products, round by round."""
    made = {name: one() for name, one in JOBS.items() if settings.only in name}
    for job in made.values():  # the first run of anything is slower
        seconds(job.run), seconds(job.products)
    found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "products": []} for name in made}
    for _ in range(settings.rounds):
        for name, job in made.items():
            for kind, run in (("seconds", job.run), ("products", job.products)):
                found[name][kind].append(seconds(run, processor=settings.processor))
    return found


def page(found: Mapping[str, dict[str, list[float]]]) -> str:
    lines = [("", "ms", "its products, ms", "ratio")]
    for name, one in found.items():
        lines.append(
            (
                name,
                f"{1e3 * median(one['seconds']):.1f}",
                f"{1e3 * median(one['products']):.1f}",
                f"{median(ratios(one)):.2f}",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def main(settings: Settings) -> None:
    found = measured(settings)
    print(page(found))
    if settings.out is not None:
        told = {"machine": machine(), "page": page(found).splitlines(), "jobs": found}
        settings.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
