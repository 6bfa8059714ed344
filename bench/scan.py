"""The selective scan: forward and backward pass of a Mamba against itself without a scan and against transformers.

    python bench/scan.py                    # width 128, 4 layers, length 1024, batch 8; growth to length 16384
    python bench/scan.py --length 256 --batch 2 --rounds 3 --longest 1024

One step is a forward and a backward pass of the next-token loss. Networks: ours with the kernel of numba, ours with
the torch loop, and ours without its scan (y = u, the same network otherwise), which bounds what any scan could reach;
transformers' slow path at length 256 and batch 2, because its backward pass grows with the square of the length,
beside ours at that size. Values are compared before anything is timed. Rounds are interleaved and medians taken, so
that a busy moment hits all alike. Times are of the process (`--wall`: by the clock), with one thread by default.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated
from unittest.mock import patch

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from unmask.model.backbones import state_space
from unmask.model.backbones.mamba import Mamba, MambaSpec
from unmask.model.passes.whole import hidden_states
from unmask.model.scan import loop
from unmask.model.scan.selective import compiled_kernel, selective_scan

VOCAB = 16
SHORT = {"batch": 2, "length": 256}  # what transformers can be asked for
Scan = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Settings:
    width: int = 128
    """Features per position."""
    blocks: int = 4
    """Layers."""
    length: int = 1024
    """Positions of a row."""
    batch: int = 8
    """Rows."""
    rounds: int = 7
    """Rounds, of which the median is taken."""
    longest: int = 16384
    """Longest row of the growth, from 1024 in steps of four times, with one row."""
    threads: int = 1
    """Threads of torch and of the kernel."""
    wall: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Time by the clock, not of the process."""


def by_loop(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    return loop.scan(u, delta, a, b, c, u.new_zeros(len(u), *a.shape) if state is None else state)


def no_scan(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """u, and a term of no size that keeps every parameter in the graph."""
    return u + 0 * (delta + (b + c).sum(-1, keepdim=True) + a.sum(-1)), u.new_zeros(len(u), *a.shape)


def step(network: Mamba, tokens: Tensor, scan: Scan) -> Callable[[], Tensor]:
    """One forward and backward pass with a way to scan."""

    def run() -> Tensor:
        network.zero_grad()
        with patch.object(state_space, "selective_scan", scan):
            logits = network.head(hidden_states(network, tokens))[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    return run


def peer_step(settings: Settings, network: Mamba, tokens: Tensor) -> Callable[[], Tensor]:
    """The same network in transformers, without its CUDA kernels."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=VOCAB, hidden_size=settings.width, num_hidden_layers=settings.blocks, use_cache=False
    )
    peer = MambaForCausalLM(config)
    named = {f"backbone.{name}": w for name, w in network.state_dict().items()}
    named["backbone.embeddings.weight"] = named["lm_head.weight"] = named.pop("backbone.embedding.weight")
    peer.load_state_dict(named)

    def run() -> Tensor:
        peer.zero_grad()
        logits = peer(tokens).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    return run


def medians(work: dict[str, Callable[[], Tensor]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of every job, in interleaved rounds."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, job in work.items():
            start = clock()
            job()
            taken[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def rows_of(batch: int, length: int) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(1))


def table(title: str, seconds: dict[str, float], against: str) -> None:
    print(f"\n{title}")
    for name, one in seconds.items():
        print(f"  {name:<28} {one:8.3f} s   {one / seconds[against]:6.2f} x {against}")


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    clock = time.perf_counter if settings.wall else time.process_time
    network = Mamba(MambaSpec(vocab=VOCAB, width=settings.width, blocks=settings.blocks, length=settings.length))
    ways: dict[str, Scan] = {"ours, torch loop": by_loop, "ours without a scan": no_scan}
    if compiled_kernel() is not None:
        ways = {"ours, numba": selective_scan, **ways}
    best = next(iter(ways))

    tokens = rows_of(settings.batch, settings.length)
    work = {name: step(network, tokens, scan) for name, scan in ways.items()}
    losses = {name: job().item() for name, job in work.items() if name != "ours without a scan"}  # compiles as well
    assert max(losses.values()) - min(losses.values()) < 1e-5, losses
    size = f"{settings.width} x {settings.blocks}, length {settings.length}, batch {settings.batch}"
    table(f"Mamba {size}: forward + backward", medians(work, settings.rounds, clock), "ours without a scan")

    tokens = rows_of(**SHORT)
    short = {best: step(network, tokens, ways[best]), "transformers": peer_step(settings, network, tokens)}
    losses = {name: job().item() for name, job in short.items()}
    assert abs(losses[best] - losses["transformers"]) < 1e-4, losses
    table("length 256, batch 2", medians(short, settings.rounds, clock), best)

    print("\ngrowth, batch 1")
    length, before = 1024, 0.0
    while length <= settings.longest:
        took = medians({best: step(network, rows_of(1, length), ways[best])}, settings.rounds, clock)[best]
        growth = f"   {took / before:5.2f} x for 4 x the length" if before else ""
        print(f"  length {length:<6} {took:8.3f} s   {1e6 * took / length:6.1f} µs per token{growth}")
        length, before = 4 * length, took


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
