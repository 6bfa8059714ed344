"""Products of the transformer's shapes: the rate of torch's own (MKL on x86), and of those that networks use.
Attention with its gradients: torch's in float32 and in bfloat16, and that of networks in bfloat16.

    OMP_NUM_THREADS=1 python bench/products.py

Processor time, one thread, the best of several rounds in turns. A product is rows x inputs -> outputs.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.model.linear import faster_with_onednn, linear
from unmask.model.short_attention import short_attention, suits
from unmask.processes.device import small_floats

SHAPES = [(128, 128), (128, 512), (256, 256), (256, 1024), (1024, 256), (768, 3072)]
ROWS = (4, 16, 64, 128, 1024, 4096)
ATTENTION = [(32, 64, 4, 32), (16, 128, 4, 32), (32, 128, 4, 64), (16, 256, 4, 48), (8, 512, 4, 64), (4, 1024, 8, 64)]
ROUNDS, LEAST = 5, 0.02  # and seconds of a round


def attention(shape: tuple[int, int, int, int], kind: torch.dtype, *, ours: bool) -> Callable[[], object]:
    """Attention of every position to every one, and its gradients."""
    rows, length, heads, each = shape
    inputs = [torch.randn(shape, dtype=kind, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(rows, length, heads * each, dtype=kind)

    def run() -> tuple[Tensor, ...]:
        q, k, v = (one.transpose(1, 2) for one in inputs)
        out = short_attention(q, k, v) if ours and suits(q, k) else F.scaled_dot_product_attention(q, k, v)
        return torch.autograd.grad(out.transpose(1, 2).flatten(2), inputs, gradient)

    return run


def seconds(run: Callable[[], Any], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - began) / times


@torch.inference_mode()
def products() -> None:
    print(f"torch {torch.__version__}; networks use oneDNN for large products here: {faster_with_onednn()}")
    print("| rows | inputs | outputs | torch's, GFLOPS | networks', GFLOPS | ratio |\n|---|---|---|---|---|---|")
    for inputs, outputs in SHAPES:
        weight = torch.randn(outputs, inputs)
        for rows in ROWS:
            x, flops = torch.randn(rows, inputs), 2 * rows * inputs * outputs
            times = max(1, round(LEAST * 1e11 / flops))
            kinds = {"torch": partial(F.linear, x, weight), "networks": partial(linear, x, weight)}
            best = {name: min(seconds(run, times) for _ in range(ROUNDS)) for name, run in kinds.items()}
            rate = {name: flops / one / 1e9 for name, one in best.items()}
            print(
                f"| {rows} | {inputs} | {outputs} | {rate['torch']:.0f} | {rate['networks']:.0f} "
                f"| {rate['networks'] / rate['torch']:.2f} |"
            )


def attentions() -> None:
    if failure := small_floats("bfloat16"):
        print(f"\nno bfloat16 on this CPU: {failure}")
        return
    print("\n| rows | length | heads | of | torch float32, ms | torch bfloat16, ms | ours bfloat16, ms |")
    print("|---|---|---|---|---|---|---|")
    for shape in ATTENTION:
        ways = ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True))
        runs = [attention(shape, kind, ours=ours) for kind, ours in ways]
        best = [min(times) for times in zip(*([seconds(run, 2) for run in runs] for _ in range(ROUNDS)), strict=True)]
        print("| " + " | ".join([*map(str, shape), *(f"{1e3 * one:.1f}" for one in best)]) + " |")


def main() -> None:
    torch.set_num_threads(1)
    products()
    attentions()


if __name__ == "__main__":
    main()
