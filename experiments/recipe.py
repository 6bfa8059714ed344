"""How much time our default recipe needs for what the reference's recipe reaches in some minutes.

    python experiments/recipe.py stories/ articles/ --minutes 20    hours at most; text, or what is prepared
    python experiments/recipe.py stories/ --minutes 20 --shares 0.25 --seeds 1 2 3

Of each corpus one run has the reference's recipe: AdamW from scratch, the bound's weights, the modulated network with
dropout, a constant learning rate. Then come whole runs of our defaults over growing shares of that time, until one of
them ends below the reference's last bound. Each run is `unmask train --minutes`, which chooses width, batch, steps,
warm-up and average for the time it has. All are validated on the same number of held-out rows. Times are those of the
training steps alone. `--together` starts all runs of a corpus at once, so that a busy machine slows all of them.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

REFERENCE = """
recipe = "plain"

[model]
cond = 128
dropout = 0.1
tied = false

[objective]
name = "mdlm"
times = "stratified:low=1e-3"
weight = "bound"

[optim]
name = "adamw"
lr = {lr}
schedule = "constant"
beta2 = 0.999
"""


@dataclass(frozen=True)
class End:
    """A finished run."""

    minutes: float  # asked for
    seconds: float  # of its steps
    steps: int
    bound: float  # at its end, nats per token
    error: float


def end_of(out: Path, minutes: float) -> End:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "valid" in line][-1]
    seconds = sum(line["seconds"] for line in lines if "seconds" in line)
    return End(minutes, seconds, last["step"], last["valid"], last["error"])


def begun(
    data: Path, out: Path, minutes: float, seed: int, options: argparse.Namespace, *more: str
) -> subprocess.Popen:
    out.parent.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, "-m", "unmask", "train", "--data", str(data), "--out", str(out), "--seed", str(seed)]
    line += ["--minutes", str(minutes), "--length", str(options.length), "--run.preview", "0", *more]
    line += ["--run.eval-rows", str(options.rows), "--run.preview-minutes", "0"]
    surroundings = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    with out.with_suffix(".log").open("w") as log:
        return subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, env=surroundings)


def ended(run: subprocess.Popen, out: Path, minutes: float) -> End:
    if run.wait():
        raise SystemExit(f"a run failed: see {out.with_suffix('.log')}")
    return end_of(out, minutes)


def prepared(data: Path, folder: Path, options: argparse.Namespace) -> Path:
    """The corpus as tokens, made once for all of its runs."""
    if (data / "manifest.json").is_file():
        return data
    if not (folder / "manifest.json").is_file():
        line = [sys.executable, "-m", "unmask", "prepare", str(data), "--out", str(folder), *options.prepare.split()]
        subprocess.run(line, check=True)
    return folder


def compare(name: str, data: Path, out: Path, seed: int, options: argparse.Namespace) -> dict[str, object]:
    """The reference's run, and ours by share of its time."""
    config = out / "reference.toml"
    out.mkdir(parents=True, exist_ok=True)
    config.write_text(REFERENCE.format(lr=options.lr))
    places = {share: out / f"ours-{share:g}" for share in sorted(options.shares)}
    runs = {}
    theirs = begun(data, out / "reference", options.minutes, seed, options, "--config", str(config))
    if options.together:
        runs = {share: begun(data, place, share * options.minutes, seed, options) for share, place in places.items()}
    reference = ended(theirs, out / "reference", options.minutes)
    ours: dict[str, End] = {}
    passed = None
    for share, place in places.items():
        minutes = share * options.minutes
        run = runs.get(share) or begun(data, place, minutes, seed, options)
        ours[f"{share:g}"] = found = ended(run, place, minutes)
        if found.bound < reference.bound:
            passed = passed or found
            if not options.together:
                break
    return {
        "data": name,
        "seed": seed,
        "reference": asdict(reference),
        "ours": {share: asdict(one) for share, one in ours.items()},
        "share of the time": None if passed is None else passed.seconds / reference.seconds,
    }


def shown(found: dict) -> str:
    lines = [f"{found['data']}, seed {found['seed']}"]
    runs = {"reference": found["reference"], **{f"ours, {share}": one for share, one in found["ours"].items()}}
    for name, one in runs.items():
        bound = f"{one['bound']:.3f} ± {one['error']:.3f} nats per token"
        lines.append(f"  {name:<14} {one['seconds']:8.0f} s of steps  {one['steps']:6} steps  {bound}")
    share = found["share of the time"]
    lines.append("  not passed" if share is None else f"  passed after {share:.2f} of the reference's time")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, nargs="+", help="text, or what `unmask prepare` made")
    parser.add_argument("--minutes", type=float, default=20, help="of the reference's run")
    parser.add_argument("--shares", type=float, nargs="+", default=[1 / 16, 1 / 8, 1 / 4, 1 / 2, 1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--lr", type=float, default=3e-4, help="the reference's learning rate")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=256, help="validated")
    parser.add_argument("--threads", type=int, default=1, help="of each run")
    parser.add_argument("--together", action="store_true", help="all runs of a corpus at once")
    parser.add_argument("--prepare", default="", help="options of `unmask prepare`, for text")
    parser.add_argument("--out", type=Path, default=Path("recipe"))
    options = parser.parse_args()
    record = []
    for number, data in enumerate(options.corpora):
        tokens = prepared(data, options.out / f"{number}-data", options)
        for seed in options.seeds:
            record.append(compare(data.name, tokens, options.out / f"{number}-{data.stem}-{seed}", seed, options))
            print(shown(record[-1]), flush=True)
            (options.out / "recipe.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
