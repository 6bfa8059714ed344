"""How cost grows with length, batch, width and vocabulary: training, evaluation, a call of every sampling process.

    python bench/growth.py                     some minutes on one core
    python bench/growth.py --only width --rounds 3

One size is changed at a time. A column is the time of a training step, of the bound of a batch in one pass, or of one
call of each process from the first token on, in milliseconds; in brackets the time divided by that of the first line.
Jobs of a column are timed in turns, in processor time, with one thread; medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from block import random_network
from page import evaluation
from train_step import ours
from unmask.diffusion.objective import OBJECTIVES
from unmask.model.backbones.transformer import Architecture
from unmask.model.model import Model
from unmask.sampling.fitting import process_for
from unmask.sampling.logits import LogitOptions
from unmask.sampling.policy import POLICIES, policy_of
from unmask.sampling.process import PROCESSES, run
from unmask.text.prompt.canvas import of_tokens

BASE = Architecture(vocab=1024, length=128, width=128, blocks=4, heads=2)
BATCH = 8
SIZES = {"length": (64, 256, 512), "batch": (1, 32), "width": (64, 256), "vocab": (256, 4096, 16384)}
STEPS = 64  # of processes that need a number
OBJECTIVES_OF = {"masked": "mdlm", "simplex": "ssd-lm"}  # of another column: the first one with this process


def cases(only: str | None) -> Iterator[tuple[str, Architecture, int]]:
    yield "", BASE, BATCH
    for name, values in SIZES.items():
        for value in values if only in (None, name) else ():
            if name == "batch":
                yield f"batch {value}", BASE, value
            else:
                heads = {"heads": value // 64} if name == "width" else {}
                yield f"{name} {value}", replace(BASE, **{name: value}, **heads), BATCH


def own_process(objective: str) -> Any:
    """The process of an objective's own sampler."""
    facts = OBJECTIVES[objective].facts
    return process_for(POLICIES[facts.sampler].needs, facts.gives)


def kinds() -> list[str]:
    """The processes, and the continuous one on the simplex, where a call sees one block."""
    return sorted({*PROCESSES, "simplex"})


def calls(kind: str, a: Architecture, batch: int) -> Callable[[], Any]:
    """One more call of a kind of sampling; a finished text is begun again."""
    name = OBJECTIVES_OF.get(kind) or next(one for one in OBJECTIVES if own_process(one) is PROCESSES[kind])
    objective = OBJECTIVES.usual(name)
    facts = objective.facts
    spec = a.sized(vocab=a.vocab, length=a.length, causal=facts.causal)
    network = random_network(spec.shown(True) if facts.network_wants_sigma else spec)
    parts = objective.parts(vocab=a.vocab, width=a.width)
    model = Model(network, a.vocab - 1, objective, parts=parts, state=objective.state())
    policy = policy_of(facts.sampler, steps=STEPS if POLICIES[facts.sampler].budget else None)
    made = own_process(name).of(policy=policy, options=LogitOptions(), windows=None, model=model)

    start = torch.full((batch, a.length), a.vocab - 1)
    start[:, 0] = 0  # left to right, something has to be given

    def steps() -> Iterator[Any]:
        while True:
            yield from run(made, network, of_tokens(start, mask=a.vocab - 1), seed=1)

    running = steps()
    return torch.inference_mode()(lambda: next(running))


def columns(a: Architecture, batch: int) -> dict[str, Callable[[], Any]]:
    running = ours(a, batch)
    found: dict[str, Callable[[], Any]] = {"training": lambda: next(running), "bound": evaluation(a, batch).run}
    return found | {kind: calls(kind, a, batch) for kind in kinds()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = {name: columns(a, batch) for name, a, batch in cases(options.only)}
    heads = list(work[""])
    taken: dict[tuple[str, str], list[float]] = {(name, head): [] for name in work for head in heads}
    for number in range(options.rounds + 1):
        for (name, head), times in taken.items():
            began = time.process_time()
            work[name][head]()
            if number:  # the first call of anything is slower
                times.append(time.process_time() - began)
    middle = {key: 1e3 * statistics.median(times) for key, times in taken.items()}
    print(f"{BASE.width} x {BASE.blocks}, length {BASE.length}, vocabulary {BASE.vocab}, batch {BATCH}; ms (ratio)")
    print(f"{'':<13}" + "".join(f"{head:>18}" for head in heads))
    for name in work:
        shown = (f"{middle[name, head]:.1f} ({middle[name, head] / middle['', head]:.2f})" for head in heads)
        print(f"{name or 'these':<13}" + "".join(f"{one:>18}" for one in shown))


if __name__ == "__main__":
    main()
