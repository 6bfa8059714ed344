"""The parts of a step that are not products, each in several forms: which form is faster, at which shape.

    python bench/kernels.py                    GELU, attention, dropout: a minute
    python bench/kernels.py --only attention
    ATEN_CPU_CAPABILITY=avx2 python bench/kernels.py    as on a processor without AVX-512

Forms are timed in turns, in processor time, so that other work on the machine counts little; medians. The last column
is the time divided by that of the first form.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.model.backbones.attention import attend
from unmask.model.backbones.block import dropped
from unmask.model.backbones.gelu import gelu, gelu_linear

Forms = dict[str, Callable[[], object]]


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by two products and a softmax."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return ((q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def without(work: Callable[..., Tensor], *given: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            work(*given)

    return run


def with_gradient(work: Callable[..., Tensor], *given: Tensor) -> Callable[[], object]:
    out = torch.randn_like(work(*given))
    learned = [one for one in given if one.requires_grad]
    return lambda: torch.autograd.grad(work(*given), learned, out)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def activations() -> Iterator[tuple[str, Forms]]:
    def of_torch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(F.gelu(x, approximate="tanh"), weight, bias)

    for rows in (128, 4096):
        x, weight, bias = numbers(rows, 1024), numbers(256, 1024), numbers(256)
        yield (
            f"GELU of {rows} x 1024",
            {
                "torch": without(partial(F.gelu, approximate="tanh"), x),
                "in pieces": without(gelu, x),
            },
        )
        yield (
            f"GELU and product of {rows} x 1024, forward and backward",
            {
                "torch": with_gradient(of_torch, x, weight, bias),
                "in pieces": with_gradient(gelu_linear, x, weight, bias),
            },
        )


def attentions() -> Iterator[tuple[str, Forms]]:
    for batch, length in ((1, 64), (1, 128), (1, 512), (32, 64), (32, 128), (8, 512), (4, 1024)):
        given = [numbers(batch, length, 4, 64) for _ in range(3)]
        name = f"attention, batch {batch}, length {length}"
        yield name, {"fused": without(attend, *given), "explicit": without(explicit, *given)}
        yield (
            f"{name}, forward and backward",
            {
                "fused": with_gradient(attend, *given),
                "explicit": with_gradient(explicit, *given),
            },
        )


def dropouts() -> Iterator[tuple[str, Forms]]:
    y = numbers(32, 128, 256)
    yield (
        "dropout of 4096 x 256, forward and backward",
        {
            "torch": with_gradient(lambda y: F.dropout(y, 0.1), y),
            "ours": with_gradient(lambda y: dropped(y, 0.1), y),
        },
    )


PARTS = {"gelu": activations, "attention": attentions, "dropout": dropouts}


def seconds(forms: Forms, rounds: int) -> dict[str, float]:
    """The median processor time of each form, in turns."""
    for run in forms.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds):
        for name, run in forms.items():
            began = time.process_time()
            run()
            taken[name].append(time.process_time() - began)
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads, median of {options.rounds}")
    for part, cases in PARTS.items():
        if options.only in (None, part):
            for name, forms in cases():
                took = seconds(forms, options.rounds)
                first = next(iter(took.values()))
                print(name)
                for form, value in took.items():
                    print(f"  {form:<10} {1e3 * value:9.3f} ms  {value / first:5.2f}", flush=True)


if __name__ == "__main__":
    main()
