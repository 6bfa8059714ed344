"""Products of the transformer's shapes: the rate of torch's own (MKL on x86), and of those that networks use.

    OMP_NUM_THREADS=1 python bench/products.py

Processor time, one thread, the best of several rounds in turns. A product is rows x inputs -> outputs.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from unmask.model.linear import faster_with_onednn, linear

SHAPES = [(128, 128), (128, 512), (256, 256), (256, 1024), (1024, 256), (768, 3072)]
ROWS = (4, 16, 64, 128, 1024, 4096)
ROUNDS, LEAST = 5, 0.02  # and seconds of a round


def seconds(run: Callable[[], Any], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - began) / times


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
