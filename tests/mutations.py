"""Break the code in the ways people have broken it, and show that the tests notice each one.

    python tests/mutations.py            every mutation (about a minute and a half)
    python tests/mutations.py weight     those whose name contains a word

Each mutation replaces one piece of text in a copy of the package and runs tests/diffusion on the copy. It prints
which test failed first; a mutation that survives makes the script exit with 1.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent

# name: (file under src/unmask/diffusion, what stands there, what it becomes)
MUTATIONS = {
    "weight is 1 % off": ("schedule.py", "self.slope / self.hidden", "1.01 * self.slope / self.hidden"),
    "weight 1/(t + eps)": ("schedule.py", "self.slope / self.hidden", "self.slope / (self.hidden + 1e-3)"),
    "discrete weight is 1 % off": ("mdlm.py", "self.steps * reveal_chance", "1.01 * self.steps * reveal_chance"),
    "the first step is never drawn": ("times.py", ".clamp(max=total - 1) + 1", ".clamp(min=1, max=total - 1) + 1"),
    "divided by the number of masks": (
        "mdlm.py",
        "return weight[:, None] * cross_entropy(network, x0, x_t, level.sigma, mask=mask)\n        # T steps",
        "return weight[:, None] * cross_entropy(network, x0, x_t, level.sigma, mask=mask) / (x_t == mask).double()"
        ".mean(1, keepdim=True).clamp(min=1e-9)\n        # T steps",
    ),
    "the mask may be predicted": (
        "rows.py",
        "forbid(logits[part], mask).logsumexp(1)",
        "logits[part].logsumexp(1)",
    ),
    "alpha_s swapped for 1 - alpha_s": ("d3pm.py", "p_mask * s.alpha / torch", "p_mask * (1 - s.alpha) / torch"),
    "alpha_t in the place of alpha_s": ("d3pm.py", "p_mask * s.alpha / torch", "p_mask * t.alpha / torch"),
    "0/0 at the first step": ("d3pm.py", "torch.where(s.hidden > 0, s.hidden, 1.0)", "s.hidden"),
    "no reconstruction in D3PM": (
        "d3pm.py",
        "return self.steps * kl + reconstruction(network, x0, t, self.zero_masking, mask, frozen)",
        "return self.steps * kl",
    ),
    "gradient reaches the mask": ("rows.py", "gradient[:, ctx.mask] = 0", "pass"),
    "sign of the loss": ("mdlm.py", "return spread(row_nats", "return spread(-row_nats"),
    "count weight is 1 % off": ("bound.py", "weight = free.to(u.dtype) / k", "weight = 1.01 * free.to(u.dtype) / k"),
    "counts start at zero": ("times.py", "torch.minimum((u * free).long(), free - 1) + 1", "(u * free).long()"),
    "frozen tokens are hidden": ("corruption.py", "chosen if frozen is None else chosen & ~frozen", "chosen"),
    "frozen tokens are counted": ("bound.py", "(~frozen).sum(1)", "torch.full((len(x0),), x0.shape[1])"),
    "reveal chance is 1 % off": (
        "reverse.py",
        "(t.hidden - s.hidden) / t.hidden",
        "1.01 * (t.hidden - s.hidden) / t.hidden",
    ),
    "carry-over forgotten": ("mdlm.py", "(x_t == mask)[..., None], forbid", "(x_t == x_t)[..., None], forbid"),
    "score entropy counts the mask": (
        "sedd.py",
        "log_s.exp().index_fill(-1, torch.tensor([mask], device=log_s.device), 0.0).sum(-1)",
        "log_s.exp().sum(-1)",
    ),
    "score entropy without its constant": ("sedd.py", " + r * (torch.log(r) - 1))", ")"),
    "log(v - 1) forgotten": ("sedd.py", " - math.log(logits.shape[-1] - 1)", ""),
    "hidden share by subtraction": ("schedule.py", "hidden = t**self.power", "hidden = 1 - (1 - t**self.power)"),
    "cosine derivative is 1 % off": (
        "schedule.py",
        "math.pi / 2 * torch.sin(angle))",
        "1.01 * math.pi / 2 * torch.sin(angle))",
    ),
    "stratified cells overlap": ("times.py", "(u / len(u) + cell / len(u)) % 1", "(u + cell / len(u)) % 1"),
    "T-step bound without its first step": ("bound.py", "times = grid(steps)", "times = grid(steps)[:-1]"),
    "first token is predicted": (
        "autoregressive.py",
        "torch.tensor([0], device=x0.device), False",
        "torch.tensor([0], device=x0.device), True",
    ),
}


def outcome(name: str) -> str | None:
    """The first test that fails under a mutation, or None if all pass."""
    file, before, after = MUTATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / "src/unmask/diffusion" / file
        text = path.read_text(encoding="utf-8")
        if text.count(before) < 1:
            raise SystemExit(f"mutation {name!r}: {file} no longer holds {before!r}; bring the list up to date")
        path.write_text(text.replace(before, after, 1), encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/diffusion"],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    failed = re.search(r"FAILED tests/(\S+)", run.stdout)
    if run.returncode not in (0, 1) or (run.returncode == 1 and failed is None):
        raise SystemExit(f"mutation {name!r}: the tests did not run\n{run.stdout}{run.stderr}")
    return failed[1] if failed else None


def main(word: str = "") -> int:
    names = [name for name in MUTATIONS if word in name]
    survivors = 0
    with ThreadPoolExecutor(2) as pool:
        for name, failed in zip(names, pool.map(outcome, names), strict=True):
            print(f"{name:<36} {'noticed by ' + failed if failed else 'SURVIVES'}", flush=True)
            survivors += failed is None
    print(f"{len(names)} mutations, {survivors} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
