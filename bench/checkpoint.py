"""Memory and time that loading a checkpoint of the official size takes, against building it and copying weights in.

    python bench/checkpoint.py  # writes 1.4 GB to a temporary folder and removes it

`file` is memory mapped from model.safetensors, which the system can drop and share; `own` belongs to the process.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load, save
from unmask.model.convert import convert
from unmask.model.passes.whole import logits_at

OFFICIAL = Architecture(vocab=50258, length=1024, width=768, blocks=12, heads=12, cond=128)


def memory() -> dict[str, float]:
    """Megabytes of this process, by kind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kinds = {"RssAnon": "own", "RssFile": "file", "VmHWM": "peak"}
    found = dict(line.split()[:2] for line in lines if len(line.split()) > 1)
    return {name: int(found[f"{key}:"]) / 1024 for key, name in kinds.items()}


def mapped(folder: Path) -> Transformer:
    return load(folder).network


def copied(folder: Path) -> Transformer:
    network = Transformer(OFFICIAL)
    weights = load_file(folder / "model.safetensors")
    network.load_state_dict({name.removeprefix("backbone."): w for name, w in weights.items()})
    return network.eval()


WAYS = {"unmask.load": mapped, "build and copy": copied}


def measure(way: str, folder: Path) -> None:
    """What a process of its own sees: memory added by loading, then by one pass over 128 tokens."""
    tokens = torch.randint(1000, (1, 128))
    before = memory()
    start = time.perf_counter()
    network = WAYS[way](folder)
    took, after = time.perf_counter() - start, memory()
    with torch.no_grad():
        logits_at(network, tokens, torch.zeros(1), torch.arange(8))
    used = memory()
    for label, now in (("loaded", after), ("used", used)):
        parts = ", ".join(f"{kind} {now[kind] - before[kind]:5.0f} MB" for kind in ("own", "file"))
        print(f"  {label:<7} {parts}" + (f"   {took:.2f} s" if now is after else ""))
    print(f"  peak    {used['peak'] - sum(before[kind] for kind in ('own', 'file')):5.0f} MB")


def main() -> None:
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        ours, official = Path(folder) / "ours", Path(folder) / "official"
        save(ours, Transformer(OFFICIAL), mask=50257)
        convert(ours, official, to="official")
        size = (official / "model.safetensors").stat().st_size / 2**20
        print(f"model.safetensors: {size:.0f} MB")
        for label, way, path in (
            ("unmask.load, official layout", "unmask.load", official),
            ("unmask.load, ours (sha256 and self-test)", "unmask.load", ours),
            ("build the network and copy the weights in", "build and copy", official),
        ):
            print(label)
            print(
                subprocess.run(
                    [sys.executable, __file__, way, path], capture_output=True, text=True, check=True
                ).stdout,
                end="",
            )


if __name__ == "__main__":
    main()
