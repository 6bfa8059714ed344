"""The sizes of a run that follow from its data and its time: packing, vocabulary, network, batch and steps.

`--minutes` replaces a choice of network and steps. The network is the widest of `LADDER` that sees at least `EACH`
training tokens per parameter (embeddings aside) in the time there is and in at most `PASSES` passes over the data: a
small network that learns is better than a large one that does not. Everything here is a pure function. The choice is
written to settings.toml, and the run is then an ordinary one with a fixed number of steps.
"""

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.model import cost
from unmask.model.backbone import Spec
from unmask.text.corpus.packed import fit_rows, length_for
from unmask.training.estimate import FEWEST, estimate
from unmask.training.optim import OPTIMIZERS
from unmask.training.phases import continue_spec, phases, spec_of
from unmask.training.settings import Train, settle_training

LADDER = ((64, 3), (96, 3), (128, 4), (192, 4), (256, 6), (384, 8), (512, 8), (768, 12))  # widths and blocks
HEAD = 32  # features of an attention head
EACH = 4  # training tokens per parameter that a network needs
PASSES = 50  # most passes over the data
TOKENS = 2048  # of a step, and twice as many from width 192 on
MANY = 100  # steps for which a run from --init takes fewer rows at a time
TIMES = 5  # validations of a run
FEW = 4  # rows of a validation, at least: an error bar needs several
ASIDE = 0.1  # share of the time for validation, previews and checkpoints
RARE = 2000  # bytes of text per id of a bpe vocabulary
ENCODER, LARGE = 2e-4, 5e-4  # learning rates with --init: of an encoder, and of a network too large for Muon
DEAR = 2e11  # FLOPs of an update that are never too many: some seconds of one core
SMALLEST, LARGEST = 512, 4096  # bpe vocabularies


def vocabulary_for(size: int) -> int:
    """The ids of a bpe vocabulary for so many bytes of text, a power of two; 0 bytes: not known."""
    if not size:
        return LARGEST
    return int(min(LARGEST, max(SMALLEST, 2 ** round(np.log2(size / RARE)))))


def packed_for(
    asked: Train,
    lengths: np.ndarray | None,
    *,
    given: Collection[str] = (),
    framed: bool = False,
    regions: bool = False,
    pairs: bool = False,
) -> Train:
    """The settings with the packing, and for `rows` the length, that suit documents of these lengths.

    None: they cannot be packed one per row. `framed`: the network is an encoder, whose rows have a frame. `regions`:
    the documents are regions of longer sequences, which rows may not join. `pairs`: they are answers with what is
    given.
    """
    text, length = asked.text, asked.text.length
    free = "text.length" not in given
    if pairs and framed:
        raise UserError(
            "an encoder does not learn pairs (--given, --answer): it writes no text. Use another --model.name."
        )
    if not text.chooses_pack:
        return asked
    if pairs:
        if lengths is not None and free and not asked.init:
            length = length_for(lengths, most=length, share=1.0)
        return replace(asked, text=replace(text, pack="chat" if text.template else "exchange", length=length))
    alone = lengths is not None and not asked.model.carries and fit_rows(lengths, length)
    if regions and not (framed or asked.model.carries):
        return replace(asked, text=replace(text, pack="windows"))
    if alone and lengths is not None and free and (framed or not asked.init):
        length = length_for(lengths, most=length)
    pack = ("padded" if alone else "wrap") if framed else ("rows" if alone else "stream")
    return replace(asked, text=replace(text, pack=pack, length=length))


def optimizer_for(asked: Train, spec: Spec, *, given: Collection[str] = ()) -> Train:
    """The settings of a run that starts from a network of `spec`, with the optimizer that suits it.

    AdamW for an encoder, at a learning rate that keeps what it has learned, and for a large network on few tokens a
    step, of which Muon's products would cost more than a third of what its passes do.
    """
    passes = cost.training_flops(spec, length=asked.text.length) * asked.optim.batch * asked.text.length
    dear = not asked.adapter.rank and asked.optim.flops(spec) > max(DEAR, passes / 3)
    if "optim.name" not in given and (spec.framed or dear):
        asked = replace(asked, optim=OPTIMIZERS.turned(asked.optim, "adamw"))
    elif not spec.framed:
        return asked
    rate = ENCODER if spec.framed else LARGE
    return asked if "optim.lr" in given else replace(asked, optim=replace(asked.optim, lr=rate))


def size_run(
    asked: Train,
    *,
    minutes: float,
    rows: int,
    vocab: int,
    rate: float,
    given: Collection[str] = (),
    init: Spec | None = None,
    world: int = 1,
) -> Train:
    """The settings for a run of some minutes over `rows` rows, at `rate` matrix FLOPs per second of all processes.

    Settings whose names are in `given` stay as they are. `init` is the network that the run starts from.
    """
    if "steps" in given:
        raise UserError("give --minutes, which chooses the number of steps, or --steps, but not both.")
    if not minutes > 0:
        raise UserError(f"--minutes must be more than 0, not {minutes:g}.")
    best: Train | None = None
    for model in networks(asked.model, given, fixed=init is not None):
        batch = asked.optim.batch if "optim.batch" in given else batch_for(model, asked.text.length, rows, world)
        while True:
            one = replace(asked, model=model, optim=replace(asked.optim, batch=batch))
            pace = seconds_per_step(one, rows=rows, vocab=vocab, rate=rate, init=init)
            steps = int(min(60 * minutes * (1 - ASIDE) / pace, PASSES * rows / batch))
            # A network that was given cannot be smaller, but its steps can.
            if steps >= MANY or init is None or "optim.batch" in given or batch % (2 * world):
                break
            batch //= 2
        steps = max(FEWEST, steps)
        one = with_steps(one, steps, given)
        if best is None or steps * batch * asked.text.length >= EACH * inner_parameters(model, asked.text.length):
            best = one
    assert best is not None
    return settle_training(best)


def networks(model: Spec, given: Collection[str], *, fixed: bool) -> list[Spec]:
    """The networks to choose from, smallest first; the asked one, if it was given or has no such sizes."""
    names = {one.name for one in fields(model)}
    if (
        fixed
        or not {"width", "blocks", "heads"} <= names
        or {"model.width", "model.blocks", "model.heads"} & {*given}
    ):
        return [model]
    return [replace(model, width=d, blocks=n, heads=d // HEAD) for d, n in LADDER]


def batch_for(model: Spec, length: int, rows: int, world: int) -> int:
    """Rows of a step: a power of two of about `TOKENS` tokens, no more than a quarter of the data, shared equally."""
    tokens = TOKENS * (2 if model.width >= 192 else 1)
    most = max(1, min(tokens // length, rows // 4))
    return -(-(2 ** int(np.log2(most))) // world) * world


def seconds_per_step(asked: Train, *, rows: int, vocab: int, rate: float, init: Spec | None = None) -> float:
    """The mean over the phases of a run."""
    many = replace(asked, steps=1000)
    total = 0.0
    for phase in phases(many):
        spec = spec_of(many, phase, vocab=vocab) if init is None else continue_spec(init, many, phase)
        total += estimate(many, spec, phase, rows=rows, rate=rate).seconds
    return total / many.steps


def inner_parameters(model: Spec, length: int) -> int:
    """The weights of a network, embeddings aside."""
    return cost.parameters(model.sized(vocab=1, length=length, causal=False))


def with_steps(asked: Train, steps: int, given: Collection[str]) -> Train:
    """The settings with a number of steps, and with what follows from it."""
    often = max(1, -(-steps // TIMES))
    rows = round(0.1 * steps * asked.optim.batch / TIMES)  # a validation row costs a third of a training row
    follows: dict[str, Any] = {
        "optim.warmup": min(100, max(1, steps // 10)),
        "optim.ema": round(min(0.999, max(0.9, 1 - 10 / steps)), 4),
        "run.eval_every": often,
        "run.eval_rows": min(asked.run.eval_rows, max(FEW, asked.optim.batch, rows)),
        "run.save_every": often,
    }
    tables: dict[str, dict[str, Any]] = {"optim": {}, "run": {}}
    for name, value in follows.items():
        table, _, field = name.partition(".")
        if name not in given:
            tables[table][field] = value
    return replace(
        asked, steps=steps, optim=replace(asked.optim, **tables["optim"]), run=replace(asked.run, **tables["run"])
    )
