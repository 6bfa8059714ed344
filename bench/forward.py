"""Trunk and head on hidden rows against a textbook network: times, share of the GEMM rate, peak memory.

    python bench/forward.py             # both sizes
    python bench/forward.py --only small

Both networks have the same weights and get the same tokens, half of them hidden; what each gives for the hidden rows
is compared first. Rounds are interleaved, and medians taken, so that a busy moment hits both alike. The GEMM rate is
that of a block's own matrix products, bare, in the same rounds; the trunk's share counts its attention as work too.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from textbook import Textbook, log_probs
from unmask.diffusion.mdlm import row_log_probs
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.passes.whole import hidden_states, logits_at

SIZES = {
    "small": (Architecture(vocab=4096, length=128, width=256, blocks=6, heads=4, cond=128), 32, 15),
    "official": (Architecture(vocab=50258, length=1024, width=768, blocks=12, heads=12, cond=128), 1, 7),
}


def networks(a: Architecture) -> tuple[Transformer, Textbook]:
    """Two networks with the same weights, random and not zero."""
    torch.manual_seed(0)
    ours = Transformer(a)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(0, 0.05)
    theirs = Textbook(a).eval()
    theirs.load_state_dict({k: w for k, w in ours.state_dict().items() if not k.startswith("rotary")})
    return ours.freeze(), theirs


def canvas(a: Architecture, batch: int) -> tuple[Tensor, Tensor]:
    """Tokens with every other one hidden, and the hidden rows."""
    tokens = torch.randint(a.vocab - 1, (batch, a.length), generator=torch.Generator().manual_seed(1))
    tokens[:, ::2] = a.vocab - 1
    return tokens, (tokens == a.vocab - 1).flatten().nonzero().squeeze(1)


def jobs(name: str) -> dict[str, Callable[[], Tensor]]:
    a, batch, _ = SIZES[name]
    ours, theirs = networks(a)
    tokens, rows = canvas(a, batch)
    sigma, mask = torch.zeros(batch), a.vocab - 1
    x, h = torch.randn(tokens.numel(), a.width), torch.randn(tokens.numel(), 4 * a.width)
    block = ours.blocks[0]

    def products() -> Tensor:
        for layer in (block.attn_qkv, block.attn_out, block.mlp[0]):
            torch.mm(x, layer.weight.T)
        return torch.mm(h, block.mlp[2].weight.T)

    return {
        "textbook": lambda: log_probs(theirs(tokens, sigma), tokens, mask).flatten(0, 1)[rows],
        "ours": lambda: row_log_probs(logits_at(ours, tokens, sigma, rows), mask=mask),
        "trunk": lambda: hidden_states(ours, tokens),
        "products": products,
    }


def seconds(work: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, job in work.items():
            start = time.perf_counter()
            job()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def peak(name: str, job: str) -> float:
    """Megabytes that one job adds to the memory of a process that already holds both networks."""
    line = [sys.executable, __file__, "--only", name, "--peak-of", job]
    return float(subprocess.run(line, capture_output=True, text=True, check=True).stdout)


def memory(field: str) -> float:
    """A line of /proc/self/status in megabytes: VmRSS, what is in memory now, or VmHWM, the most there was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def print_peak(name: str, job: str) -> None:
    work = jobs(name)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the preparations
    before = memory("VmRSS")
    work[job]()
    print(memory("VmHWM") - before)


def report(name: str) -> None:
    a, batch, rounds = SIZES[name]
    work = jobs(name)
    far = (work["textbook"]() - work["ours"]())[:, :-1].abs().max().item()  # the last id is the mask
    assert far < 1e-3, f"the two networks differ by {far}"
    took = seconds(work, rounds)
    tokens = batch * a.length
    rate = 24 * a.width**2 * tokens / took["products"]
    trunk_rate = tokens * a.flops() - tokens * 2 * a.width * a.vocab
    trunk_rate /= took["trunk"]
    print(
        f"{name}: width {a.width}, {a.blocks} blocks, length {a.length}, vocabulary {a.vocab}, batch {batch}, ",
        end="",
    )
    print(f"half hidden, {torch.get_num_threads()} threads, median of {rounds}; largest difference {far:.1e}")
    for job, label in (("textbook", "textbook: all rows, log-softmax"), ("ours", "ours: trunk + head, hidden rows")):
        speed = f"{took[job] * 1e3:8.1f} ms   {tokens / took[job]:9,.0f} tokens/s"
        print(f"  {label:<32} {speed}   peak + {peak(name, job):.0f} MB")
    print(f"  ours / textbook                  {took['ours'] / took['textbook']:8.2f}")
    print(f"  trunk, all rows                  {took['trunk'] * 1e3:8.1f} ms   {trunk_rate / 1e9:.0f} GFLOPS")
    print(
        f"  bare products of its blocks      {rate / 1e9:.0f} GFLOPS; the trunk reaches {trunk_rate / rate:.0%} of it"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SIZES)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peak-of", choices=["textbook", "ours"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        if options.peak_of:
            print_peak(options.only, options.peak_of)
            return
        for name in [options.only] if options.only else SIZES:
            report(name)


if __name__ == "__main__":
    main()
