"""Block diffusion: seconds per sequence of cached blocks, against windows, full recomputation and autoregression.

    python bench/block.py                              512 to 4096 tokens, one row at a time
    python bench/block.py --lengths 2048 --repeats 1 --no-again    a quick look, without the slowest system
    python bench/block.py --batch 8

All networks have the same shape and random weights: time does not depend on what they say. The text is one row, or
`--batch` of them. Of a sequence some pieces are drawn, at places spread evenly over it, each after random text as its
beginning; the pass that reads this beginning is not timed. Seconds per token, averaged over the places, times the
length are the seconds per sequence. The systems take turns piece by piece, so that a busy moment hits all alike, and
the table has the medians of the repeats. Below it are the ratios of the last length: windows to blocks at equal calls
per token, and blocks of 4 to the autoregressive network.

Windows are semi-autoregressive masked diffusion: a window of `--window` tokens, half of them new. Cached blocks see
as many tokens (sliding-window attention); the autoregressive network sees everything.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
import tyro

from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.sampling.autoregressive import AutoregressiveProcess
from unmask.sampling.blockwise import Blockwise
from unmask.sampling.masked import Masked, Sliding
from unmask.sampling.policies.planned import FirstHitting, Groups
from unmask.sampling.process import Process, answer
from unmask.text.prompt.canvas import of_tokens

SHAPE = Architecture(vocab=2048, length=128, width=256, blocks=6, heads=4, tied=True, reads_before=True)


@dataclass(frozen=True)
class Settings:
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096)
    """Tokens of a sequence."""
    window: int = 128
    """Tokens that windows and cached blocks see."""
    batch: int = 1
    """Rows at once; seconds are those of the whole batch."""
    places: int = 4
    """Pieces of a sequence that are drawn."""
    piece: int = 32
    """Tokens of a piece."""
    repeats: int = 3
    """Times that everything is drawn; the table has medians."""
    again: bool = True
    """Whether to draw also with everything read again in each call: by far the slowest."""


@dataclass(frozen=True)
class System:
    name: str
    network: Transformer
    process: Process
    skipped: int  # tokens of a piece before the clock starts: the pass that reads the beginning belongs to them


def random_network(shape: Architecture) -> Transformer:
    torch.manual_seed(0)
    net = Transformer(shape)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.05)
    return net.freeze()


AUTOREGRESSIVE, FOURS, QUARTER = "autoregressive, KV cache", "blocks of 4", "four tokens per call"
ONE_BY_ONE, FEW, FEWEST = "first-hitting", "two calls a block", "one call a block"


def systems(settings: Settings) -> list[System]:
    net, causal = random_network(SHAPE), random_network(replace(SHAPE, causal=True))
    blocks: Callable[..., Blockwise] = lambda size, **more: Blockwise(  # noqa: E731
        size, max(settings.window, 2 * size), **more
    )
    sliding = Sliding.usual(settings.window)
    groups = Groups(sizes=(4,) * -(-settings.window // 4))
    found = [
        System(AUTOREGRESSIVE, causal, AutoregressiveProcess(cached=True), 1),
        System(f"{FOURS}, {ONE_BY_ONE}", net, blocks(4), 4),
        System(f"{FOURS}, {FEW}", net, blocks(4, policy=Groups(calls=2)), 4),
        System(f"{FOURS}, {FEWEST}", net, blocks(4, policy=Groups(calls=1)), 4),
        System(f"blocks of 16, {ONE_BY_ONE}", net, blocks(16), 16),
        System("blocks of 16, four calls a block", net, blocks(16, policy=Groups(calls=4)), 16),
        System(f"windows, {ONE_BY_ONE}", net, Masked(FirstHitting(), sliding), 0),
        System(f"windows, {QUARTER}", net, Masked(groups, sliding), 0),
    ]
    return [*found, System(f"{FOURS}, everything read again", net, blocks(4, cached=False), 4)][: 8 + settings.again]


def ratios(seconds: dict[str, float]) -> list[str]:
    """What the systems are to each other, from the seconds of each for a sequence of one length."""
    pairs = [
        (f"windows, {ONE_BY_ONE}", f"{FOURS}, {ONE_BY_ONE}"),
        (f"windows, {QUARTER}", f"{FOURS}, {FEWEST}"),
        (f"windows, {QUARTER}", "blocks of 16, four calls a block"),
    ]
    lines = [f"{slow} / {fast}: {seconds[slow] / seconds[fast]:.1f}" for slow, fast in pairs]
    for calls in (ONE_BY_ONE, FEW, FEWEST):
        ratio = seconds[f"{FOURS}, {calls}"] / seconds[AUTOREGRESSIVE]
        lines.append(f"{FOURS}, {calls} / {AUTOREGRESSIVE}: {ratio:.2f}")
    return lines


@torch.inference_mode()
def seconds_per_token(one: System, before: int, settings: Settings) -> tuple[float, float]:
    """Seconds and calls per token of a piece that begins after `before` tokens."""
    mask, tokens = SHAPE.vocab - 1, settings.piece + one.skipped
    given = torch.randint(mask, (settings.batch, before), generator=torch.Generator().manual_seed(before))
    canvas = of_tokens(torch.cat([given, torch.full((settings.batch, tokens), mask)], 1), mask=mask)
    state: Any = one.process.begin(canvas, seed=before)
    start, calls = time.perf_counter(), 0
    while (asked := one.process.ask(state)) is not None:
        left = int(one.process.canvas(state).hidden.sum(1).max())
        if left == settings.piece and not calls:
            start = time.perf_counter()
        calls += left <= settings.piece
        state, _ = one.process.commit(state, asked, answer(one.network, asked))
    return (time.perf_counter() - start) / settings.piece, calls / settings.piece


def main(settings: Settings) -> None:
    made = systems(settings)
    for one in made:
        seconds_per_token(one, settings.window, replace(settings, piece=16))  # the first pass of a network is slower
    print(f"one thread: {torch.get_num_threads() == 1}; batch {settings.batch}, window {settings.window}")
    print("| system | calls per token | " + " | ".join(f"{length} tokens" for length in settings.lengths) + " |")
    print("|---" * (2 + len(settings.lengths)) + "|")
    found: dict[tuple[str, int], list[float]] = {}
    calls: dict[str, float] = {}
    for _ in range(settings.repeats):
        for length in settings.lengths:
            sums = dict.fromkeys((one.name for one in made), 0.0)
            for place in range(settings.places):
                before = int((length - settings.piece) * (place + 0.5) / settings.places) // 16 * 16
                for one in made:
                    pace, calls[one.name] = seconds_per_token(one, before, settings)
                    sums[one.name] += pace / settings.places * length
            for name, seconds in sums.items():
                found.setdefault((name, length), []).append(seconds)
    for one in made:
        cells = " | ".join(f"{median(found[one.name, length]):.2f} s" for length in settings.lengths)
        print(f"| {one.name} | {calls[one.name]:.2f} | {cells} |")
    last = settings.lengths[-1]
    print(f"\nat {last} tokens:")
    print("\n".join(ratios({one.name: median(found[one.name, last]) for one in made})))


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
