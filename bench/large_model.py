"""A random decoder of a billion parameters, in bfloat16 and in shards: memory and time to load, bound and sample it.

    python bench/large_model.py [--folder /tmp/billion] [--keep]

Writes a LLaDA of 1.0 billion parameters (2.1 GB), then a child process loads it, bounds 32 tokens and fills 8 blanks.
Printed: the peak of the child's memory, and the same less that of a child that only imports unmask, over the file.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH, LAYERS, HEADS, INNER, VOCAB, SHARDS = 2048, 17, 16, 5632, 32000, 4
CONFIG = {
    "model_type": "llada",
    "d_model": WIDTH,
    "n_heads": HEADS,
    "n_kv_heads": HEADS,
    "n_layers": LAYERS,
    "mlp_hidden_size": INNER,
    "embedding_size": VOCAB,
    "vocab_size": VOCAB,
    "max_sequence_length": 4096,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "weight_tying": False,
    "block_type": "llama",
    "mask_token_id": VOCAB - 1,
    "torch_dtype": "bfloat16",
}


def shapes() -> dict[str, tuple[int, ...]]:
    found = {f"model.transformer.{end}.weight": (VOCAB, WIDTH) for end in ("wte", "ff_out")}
    found["model.transformer.ln_f.weight"] = (WIDTH,)
    for layer in range(LAYERS):
        at = f"model.transformer.blocks.{layer}"
        found |= {f"{at}.{name}.weight": (WIDTH, WIDTH) for name in ("q_proj", "k_proj", "v_proj", "attn_out")}
        found |= {f"{at}.{name}.weight": (INNER, WIDTH) for name in ("ff_proj", "up_proj")}
        found |= {f"{at}.{name}.weight": (WIDTH,) for name in ("attn_norm", "ff_norm")}
        found[f"{at}.ff_out.weight"] = (WIDTH, INNER)
    return found


def write(folder: Path) -> int:
    """The model's files; their bytes."""
    folder.mkdir(parents=True)
    generator, names = torch.Generator().manual_seed(0), list(shapes())
    places = {name: f"model-{1 + i % SHARDS:05}-of-{SHARDS:05}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(places.values())):
        tensors = {}
        for name in (one for one in names if places[one] == file):
            shape = shapes()[name]
            values = torch.empty(shape, dtype=torch.bfloat16)
            tensors[name] = values.normal_(std=0.02, generator=generator) if len(shape) > 1 else values.fill_(1.0)
        save_file(tensors, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def use(folder: str) -> dict[str, float]:
    """Seconds of each task, and the nats."""
    from unmask.diffusion.clean import CleanRows
    from unmask.model.checkpoint import load
    from unmask.model.passes.whole import logits_at
    from unmask.random import Noise
    from unmask.sampling.masked import fill
    from unmask.text.prompt.canvas import of_prompt

    torch.set_num_threads(1)
    begun = time.perf_counter()
    model = load(folder)
    loaded = time.perf_counter()
    x = torch.randint(VOCAB - 1, (1, 32), generator=torch.Generator().manual_seed(1))
    noise = Noise(t=torch.tensor([0.5]), u=torch.rand(1, 32, generator=torch.Generator().manual_seed(2)))

    def network(x_t: torch.Tensor, sigma: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return logits_at(model.network, x_t, sigma, rows)

    bound = model.objective.precise().nats(network, CleanRows(x, noise=noise, mask=model.mask)).bound.sum() / 32
    bounded = time.perf_counter()
    with torch.no_grad():
        calls = len(list(fill(model.network, of_prompt(x[0, :8].tolist(), length=16, mask=model.mask))))
    return {
        "load": loaded - begun,
        "bound": bounded - loaded,
        "sample": time.perf_counter() - bounded,
        "calls": calls,
        "nats per token": float(bound),
        "parameters": model.num_parameters,
    }


def child(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="/tmp/billion")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--use", default="")
    parser.add_argument("--idle", action="store_true")
    given = parser.parse_args()
    if given.use or given.idle:
        import unmask.model.checkpoint  # noqa: F401

        found = use(given.use) if given.use else {}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(found | {"peak": peak}))
        return
    folder = Path(given.folder)
    size = write(folder) if not folder.exists() else sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    idle, found = child("--idle")["peak"], child("--use", str(folder))
    nats, peak = found["nats per token"], found["peak"]
    print(f"{found['parameters']:,} parameters, {size / 1e9:.2f} GB in {SHARDS} shards of bfloat16")
    print(f"load {found['load']:.1f} s; bound of 32 tokens {found['bound']:.1f} s, {nats:.2f} nats per token")
    print(f"8 blanks in {found['calls']:.0f} calls {found['sample']:.1f} s")
    print(f"peak {peak / 1e9:.2f} GB, {peak / size:.2f} times the file")
    print(f"less {idle / 1e9:.2f} GB of an idle process: {(peak - idle) / size:.2f} times the file")
    if not given.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
