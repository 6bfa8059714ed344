"""A training step against a textbook's and against the machine's limit.

    python bench/train_step.py              # both sizes: speed, share of the matrix rate, peak memory
    python bench/train_step.py growth       # time a token by length, vocabulary and width
    python bench/train_step.py data         # what reading a batch costs
    python bench/train_step.py compile      # `--run.compile`: its warm-up, its gain, and the steps that pay for it
    python bench/train_step.py types        # `--dtype bfloat16` against float32

Steps of both kinds are timed in turn in one process, and the matrix rate between them; figures are medians, with one
thread (OMP_NUM_THREADS=1) of processor time. Peak
memory is that of a process that runs three steps of one kind. The textbook's step: every logit, a log-softmax over
all of them, modulation where it stands, AdamW as torch has it by default. Both keep an average of the weights.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from textbook import Textbook, log_probs
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.times import Stratified
from unmask.model import cost
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.denoiser import Denoiser
from unmask.processes.device import Dtype, compute_type
from unmask.text.row import Rows
from unmask.training import noise
from unmask.training.estimate import matrix_rate
from unmask.training.loop import begin, train
from unmask.training.optim import Optim
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.muon import Muon
from unmask.training.phases import phases
from unmask.training.settings import Run, Text, Train

SIZES = {
    "small": (Architecture(4097, length=128, width=256, blocks=6, heads=4, cond=128, dropout=0.1), 32),
    "owt": (Architecture(50258, length=1024, width=768, blocks=12, heads=12, cond=128, dropout=0.1), 1),
}
ROUNDS = {"small": 15, "owt": 5}


def tokens(a: Architecture, batch: int, step: int) -> Tensor:
    g = torch.Generator().manual_seed(step)
    return torch.randint(a.vocab - 1, (batch, a.length), generator=g)


def ours(
    a: Architecture, batch: int, *, compiled: bool = False, kind: type[Optim] = AdamW, dtype: Dtype = "float32"
) -> Iterator[float]:
    """Seconds of each step of our loop."""
    asked = Train(
        steps=10**6,
        text=Text(length=a.length),
        model=a,
        objective=MDLM(times=Stratified(low=1e-3)),
        optim=kind(lr=1e-3, batch=batch, ema=0.9999),
        run=Run(compile=compiled, dtype=dtype),
    )
    network = Transformer(a)
    network.compute = compute_type(dtype, network.device)
    real = torch.ones(batch, a.length, dtype=torch.bool)
    steps = train(
        begin(Denoiser(network, asked.objective), asked),
        phases(asked)[0],
        asked,
        lambda step: Rows.of(tokens(a, batch, step), real),
        mask=a.vocab - 1,
    )
    for progress in steps:
        yield progress.seconds


def textbook(a: Architecture, batch: int) -> Iterator[float]:
    """Seconds of each step as a textbook has it."""
    network, mask = Textbook(a), a.vocab - 1
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4, weight_decay=0)
    shadow = [p.detach().clone() for p in network.parameters()]
    step = 0
    while True:
        began = time.perf_counter()
        x0 = tokens(a, batch, step)
        drawn = noise.draw(batch, a.length, seed=1, step=step)
        even, u = drawn.t, drawn.u
        t = 0.999 * even + 0.001
        x_t = torch.where(u < 0.999 * t[:, None], mask, x0)
        log_p = log_probs(network(x_t, t), x_t, mask)
        nats = -log_p.gather(-1, x0[..., None])[..., 0] / t[:, None]
        optimizer.zero_grad()
        nats.mean().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for average, p in zip(shadow, network.parameters(), strict=True):
                average.sub_((1 - 0.9999) * (average - p))
        step += 1
        yield time.perf_counter() - began


def timed(run: Iterator[float]) -> float:
    """Seconds of the next step; with one thread those of the processor, so that other work counts little."""
    began = time.process_time()
    wall = next(run)
    return time.process_time() - began if torch.get_num_threads() == 1 else wall


KINDS = {"ours": ours, "textbook": textbook}


def peak(size: str, kind: str) -> tuple[float, float]:
    """GB that a process needs for three steps, torch itself included, and those beyond torch and what a step must
    hold: weights, gradients, two moments and the average."""
    command = [sys.executable, __file__, "memory", size, kind]
    before, most = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    return most, most - before - 5 * 4e-9 * cost.parameters(SIZES[size][0])


def memory(field: str) -> float:
    """A line of /proc/self/status in GB. Not getrusage's, which begins with the size of the process before."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[field].split()[0]) * 1024 / 1e9


def compare(size: str) -> None:
    a, batch = SIZES[size]
    runs = {name: kind(a, batch) for name, kind in KINDS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    rates = []
    for number in range(ROUNDS[size] + 1):
        for name, run in runs.items():
            taken = timed(run)
            if number:  # the first step makes buffers
                seconds[name].append(taken)
        rates.append(matrix_rate(seconds=0.3))
    middle = {name: median(values) for name, values in seconds.items()}
    count = batch * a.length
    limit = cost.training_flops(a, rows=0.5) * count / median(rates)
    print(f"\n{size}: {a.width} x {a.blocks}, length {a.length}, vocabulary {a.vocab}, batch {batch}")
    print(f"  matrix rate {median(rates) / 1e9:.0f} GFLOPS; the counted work alone takes {limit:.3f} s at that rate")
    beyond = {}
    for name in runs:
        share = f"{limit / middle[name]:.0%} of the matrix rate" if name == "ours" else ""
        whole, beyond[name] = peak(size, name)
        print(
            f"  {name:<9} {middle[name]:.3f} s a step  {count / middle[name]:,.0f} tokens/s  {whole:.2f} GB peak, "
            f"{beyond[name]:.2f} beyond torch, weights, gradients, moments and average  {share}"
        )
    print(
        f"  ratio     {middle['textbook'] / middle['ours']:.2f} times the tokens/s, "
        f"{beyond['ours'] / beyond['textbook']:.2f} of the memory beyond what both must hold"
    )


def growth() -> None:
    """Time a token against length, vocabulary and width, one changed at a time."""
    base = Architecture(4097, length=128, width=256, blocks=6, heads=4)
    cases = [("", base)]
    cases += [("length", replace(base, length=length)) for length in (256, 512, 1024)]
    cases += [("vocab", replace(base, vocab=vocab)) for vocab in (1025, 16385, 50258)]
    cases += [("width", replace(base, width=width, heads=width // 64)) for width in (128, 512, 768)]
    print("changed   length  vocab  width   µs a token   of the matrix rate")
    for changed, a in cases:
        batch = 4096 // a.length
        run = ours(a, batch)
        seconds = median([next(run) for _ in range(6)][1:]) / 4096
        share = cost.training_flops(a, rows=0.5) / matrix_rate() / seconds
        print(f"{changed:<8} {a.length:>7} {a.vocab:>6} {a.width:>6} {1e6 * seconds:>12.1f} {share:>20.0%}")


def data() -> None:
    """What reading, shuffling and noise of a batch cost, against a step."""
    from unmask.text.corpus.batches import Batches
    from unmask.text.corpus.corpus import Corpus
    from unmask.text.corpus.packed import pack_corpus
    from unmask.text.corpus.prepare import prepare
    from unmask.text.corpus.sources import gather
    from unmask.text.tokens.vocabulary import build_tokenizer

    a, batch = SIZES["small"]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("".join(chr(97 + i % 26) if i % 7 else " " for i in range(2_000_000)))
        with gather(text) as sources:
            list(prepare(sources, build_tokenizer("byte"), Path(folder) / "data"))
        batches = Batches(pack_corpus(Corpus.open(Path(folder) / "data", "train"), a.length), batch)
        taken = []
        for step in range(200):
            began = time.perf_counter()
            batches.at(step)
            noise.draw(batch, a.length, seed=1, step=step)
            taken.append(time.perf_counter() - began)
    run = ours(a, batch)
    step_seconds = median([next(run) for _ in range(6)][1:])
    print(f"a batch: {1e3 * median(taken):.2f} ms, {median(taken) / step_seconds:.2%} of a step")


def compiling() -> None:
    """A step with and without `--run.compile`, in turns."""
    print("size       warm-up, s   plain, s   compiled, s   gain   steps that pay for the warm-up")
    cases = {"128 x 4": (Architecture(1024, length=128, width=128, blocks=4, heads=4), 16), "256 x 6": SIZES["small"]}
    for name, (a, batch) in cases.items():
        began = time.perf_counter()
        runs = {True: ours(a, batch, compiled=True), False: ours(a, batch)}
        for _ in range(3):  # shapes that change may compile again
            next(runs[True])
        warm = time.perf_counter() - began
        seconds: dict[bool, list[float]] = {True: [], False: []}
        next(runs[False])
        for _ in range(15):
            for kind, run in runs.items():
                seconds[kind].append(next(run))
        plain, fast = median(seconds[False]), median(seconds[True])
        pays = f"{(warm - 3 * fast) / (plain - fast):,.0f}" if fast < plain else "none do"
        print(f"{name:<9} {warm - 3 * fast:>11.1f} {plain:>10.3f} {fast:>13.3f} {plain / fast:>6.2f}   {pays}")


def types() -> None:
    """A step of the default recipe in float32 and in bfloat16, in turns."""
    cases = {
        "128 x 4, length 128, 16 rows, 4,097 ids": (Architecture(4097, length=128, width=128, blocks=4, heads=4), 16),
        "128 x 4, length 256, 16 rows, 29 ids": (Architecture(29, length=256, width=128, blocks=4, heads=4), 16),
        "256 x 6, length 128, 32 rows, 4,097 ids": (SIZES["small"][0], 32),
        "256 x 6, length 512, 8 rows, 4,097 ids": (replace(SIZES["small"][0], length=512), 8),
    }
    kinds: tuple[Dtype, ...] = ("float32", "bfloat16")
    print("| network | float32, ms | bfloat16, ms | ratio |\n|---|---|---|---|")
    for name, (a, batch) in cases.items():
        runs = [ours(replace(a, dropout=0.0), batch, kind=Muon, dtype=dtype) for dtype in kinds]
        rounds = [[timed(run) for run in runs] for _ in range(12)][2:]
        usual, small = (1e3 * median(taken) for taken in zip(*rounds, strict=True))
        print(f"| {name} | {usual:.0f} | {small:.0f} | {small / usual:.2f} |", flush=True)


def main() -> None:
    asked = sys.argv[1:]
    if asked[:1] == ["memory"]:
        before = memory("VmRSS")
        run = KINDS[asked[2]](*SIZES[asked[1]])
        for _ in range(3):
            next(run)
        print(before, memory("VmHWM"))
    elif asked == ["growth"]:
        growth()
    elif asked == ["data"]:
        data()
    elif asked == ["compile"]:
        compiling()
    elif asked == ["types"]:
        types()
    else:
        for size in asked or SIZES:
            compare(size)


if __name__ == "__main__":
    main()
