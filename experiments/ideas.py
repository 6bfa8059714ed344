"""Ideas for the default recipe, each tried alone: the bound after the same steps, and the time of a step.

    python experiments/ideas.py stories/ --out runs/ideas  every idea, three seeds: 40 minutes of one core
    python experiments/ideas.py stories/ --out runs/ideas --only relu2  finished runs are kept, killed ones go on

Ideas are patches of the transformer here, not options of the package: what wins moves there. Runs are `unmask train`
with its defaults on a small network; a seed gives every idea the same rows and noise, so differences are paired by
seed.

relu2      the MLP's activation is max(x, 0)²
qk-norm    queries and keys have norm √e in every head
values     every layer attends to the mean of its own and the first layer's values
embedding  the embedding, which is the head as well, learns at a third of the rate
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any
from unittest.mock import patch

import torch.nn.functional as F
from torch import Tensor

from unmask.cli.main import main as unmask
from unmask.model import attending
from unmask.model.backbone import Group
from unmask.model.backbones import block
from unmask.model.backbones.transformer import Transformer

DEFAULT = "default"
RATE = 1 / 3  # of the embedding's learning rate


def relu2() -> AbstractContextManager[Any]:
    return patch.object(block.F, "gelu", lambda x, approximate: F.relu(x).square())


def qk_norm() -> AbstractContextManager[Any]:
    plain = attending.attend

    def attend(q: Tensor, k: Tensor, v: Tensor, **rule: Any) -> Tensor:
        return plain(F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:]), v, **rule)

    return patch.object(attending, "attend", attend)


@contextmanager
def values() -> Iterator[None]:
    """`attend` is called once per layer, in order; a pass begins with layer 0."""
    plain, forward, first = attending.attend, block.Block.forward, list[Tensor]()

    def begun(self: block.Block, x: Tensor, reading: Any, index: int, last: bool) -> Tensor:
        if index == 0:
            first.clear()
        return forward(self, x, reading, index, last)

    def attend(q: Tensor, k: Tensor, v: Tensor, **rule: Any) -> Tensor:
        if not first:
            first.append(v)
        return plain(q, k, (v + first[0]) / 2, **rule)

    with patch.object(attending, "attend", attend), patch.object(block.Block, "forward", begun):
        yield


def embedding() -> AbstractContextManager[Any]:
    plain = Transformer.groups

    def groups(self: Transformer) -> list[Group]:
        own = self.vocab_embed.embedding
        others = [replace(one, parameters=tuple(p for p in one.parameters if p is not own)) for one in plain(self)]
        return [*others, Group((own,), lr=RATE)]

    return patch.object(Transformer, "groups", groups)


IDEAS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "relu2": relu2,
    "qk-norm": qk_norm,
    "values": values,
    "embedding": embedding,
}


def train(name: str, arguments: list[str]) -> int:
    """`unmask train` with an idea, in this process."""
    if name == DEFAULT:
        return unmask(["train", *arguments])
    with IDEAS[name]():
        return unmask(["train", *arguments])


def ran(name: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """One run in a process of its own: its last bound and the seconds of its steps."""
    out = options.out / f"{name}-{seed}"
    out.parent.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, __file__, str(options.data), "--run", name, "--"]
    line += ["--data", str(options.data), "--out", str(out), "--seed", str(seed), "--steps", str(options.steps)]
    line += ["--model.width", str(options.width), "--model.blocks", str(options.blocks), "--optim.batch", "16"]
    line += ["--optim.ema", "0.99", "--run.preview", "0", "--run.preview-minutes", "0", "--run.eval-rows", "1024"]
    line += ["--run.eval-every", str(options.steps), "--run.save-every", "100", "--resume"]
    with out.with_suffix(".log").open("a") as log:
        if subprocess.run(line, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode:
            raise SystemExit(f"a run failed: see {out.with_suffix('.log')}")
    lines = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [text["seconds"] / text["steps"] for text in lines if "seconds" in text and text.get("steps")]
    last = [text for text in lines if "valid" in text][-1]
    return {"bound": last["valid"], "error": last["error"], "seconds per step": median(steps)}


def main() -> None:
    if "--run" in sys.argv:
        at = sys.argv.index("--run")
        raise SystemExit(train(sys.argv[at + 1], sys.argv[at + 3 :]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="what `unmask prepare` made")
    parser.add_argument("--out", type=Path, default=Path("ideas"))
    parser.add_argument("--only", nargs="+", choices=list(IDEAS), default=list(IDEAS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--blocks", type=int, default=3)
    options = parser.parse_args()
    record: dict[str, list[dict[str, float]]] = {name: [] for name in (DEFAULT, *options.only)}
    for seed in options.seeds:
        for name, found in record.items():
            found.append(ran(name, seed, options))
            print(f"seed {seed}  {name:<10} {found[-1]['bound']:.4f} nats per token", flush=True)
    lines = list(summary(record))
    print("\n" + "\n".join(lines))
    (options.out / "ideas.json").write_text(json.dumps({"table": lines, "runs": record}, indent=1) + "\n")


def summary(record: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """Each idea: its mean, and the difference to the default, paired by seed."""
    yield f"{'idea':<12}{'nats per token':>15}{'less default':>20}{'seconds per step':>18}"
    for name, found in record.items():
        apart = [one["bound"] - other["bound"] for one, other in zip(found, record[DEFAULT], strict=True)]
        spread = f" ± {stdev(apart) / len(apart) ** 0.5:.4f}" if len(apart) > 1 else ""
        told = "" if name == DEFAULT else f"{fmean(apart):+.4f}{spread}"
        second = median(one["seconds per step"] for one in found)
        yield f"{name:<12}{fmean(one['bound'] for one in found):>15.4f}{told:>20}{second:>18.3f}"


if __name__ == "__main__":
    main()
