"""An adapter against full tuning: memory and time of a training step, in processes of their own, taking turns.

    python bench/adapter.py [--width 512] [--blocks 6] [--rank 8] [--batch 4] [--steps 6]

Printed: the growth of each process's peak memory over the network's weights alone, the median seconds of a step, and
the ratios adapter / full tuning.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys

import torch

from unmask.diffusion.mdlm import MDLM
from unmask.model.adapter import Adapter
from unmask.model.backbone import build
from unmask.model.backbones.transformer import Architecture
from unmask.model.denoiser import Denoiser
from unmask.text.row import Rows
from unmask.training.loop import begin, train
from unmask.training.optimizers.adamw import AdamW
from unmask.training.phases import phases
from unmask.training.settings import Text, Train

LENGTH, VOCAB = 128, 2048


def peak() -> float:
    """The process's peak memory, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(args: argparse.Namespace, rank: int) -> dict[str, float]:
    """Train some steps in this process."""
    spec = Architecture(width=args.width, blocks=args.blocks, heads=8, vocab=VOCAB, length=LENGTH, cond=0)
    network = build(spec)
    before = peak()
    asked = Train(
        steps=args.steps, init="a base", text=Text(length=LENGTH), model=spec, optim=AdamW(batch=args.batch),
        adapter=Adapter(rank=rank) if rank else Adapter(),
    )  # fmt: skip
    denoiser = Denoiser(network, MDLM())
    if rank:
        denoiser.add_adapter(asked.adapter)
    tokens = torch.randint(VOCAB - 1, (args.batch, LENGTH))
    rows = Rows.of(tokens, torch.ones_like(tokens, dtype=torch.bool))
    steps = train(begin(denoiser, asked), phases(asked)[0], asked, lambda step: rows, mask=VOCAB - 1)
    seconds = [progress.seconds for progress in steps]
    return {"memory": peak() - before, "seconds": statistics.median(seconds[1:])}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("width", 512), ("blocks", 6), ("rank", 8), ("batch", 4), ("steps", 6), ("turns", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--child", type=int)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(measure(args, args.child)))
        return
    found: dict[int, list[dict[str, float]]] = {0: [], args.rank: []}
    for _ in range(args.turns):
        for rank, results in found.items():
            line = [sys.executable, __file__, *sys.argv[1:], "--child", str(rank)]
            results.append(json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout))
    best = {rank: {key: min(one[key] for one in some) for key in some[0]} for rank, some in found.items()}
    for rank, one in best.items():
        name = f"adapter of rank {rank}" if rank else "full tuning"
        print(f"{name:<22}{one['memory']:8.0f} MB over the weights   {one['seconds']:.3f} s per step")
    full, adapter = best[0], best[args.rank]
    memory, seconds = (adapter[name] / full[name] for name in ("memory", "seconds"))
    print(f"{'ratio':<22}{memory:8.2f}{'':24}{seconds:.2f}")


if __name__ == "__main__":
    main()
