"""Fine-tune a pre-trained network and the same one with new weights on SST-2; draws docs/pictures/classify.png.

python experiments/classify.py --data-root DATA [--rows 600] [--seeds 1] [--out runs/experiments-classify]
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

import unmask

NAMES = {"stories": False, "from scratch": True}
WINDOW = 8  # updates of the moving average


def smooth(values):
    parts = (values[max(0, i - WINDOW + 1) : i + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in parts]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", default="runs/experiments-classify")
    asked = parser.parse_args()
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), constrained_layout=True)
    for name, scratch in NAMES.items():
        out = Path(asked.out) / name.replace(" ", "-")
        found = unmask.classify(
            "stories",
            "SST-2",
            out,
            protocol="plain",
            resume=out.exists(),
            data_root=asked.data_root,
            rows=asked.rows,
            seeds=asked.seeds,
            length=64,
            scratch=scratch,
        )
        curve = [json.loads(line) for line in (out / "seed-1" / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in curve if "loss" in line]
        left.plot([line["step"] for line in steps], smooth([line["loss"] for line in steps]), label=name)
        valid = [(line["step"], line["valid"]["accuracy"]) for line in curve if "valid" in line]
        right.plot(*zip(*valid, strict=True), marker="o", label=name)
        print(name, found["valid"]["accuracy"])
    left.set(xlabel="update", ylabel="nats per label")
    right.set(xlabel="update", ylabel="accuracy on 872 dev texts")
    right.axhline(444 / 872, color="grey", linewidth=0.8, linestyle=":")
    left.legend(frameon=False)
    figure.savefig(Path(__file__).parents[1] / "docs" / "pictures" / "classify.png", dpi=110)


if __name__ == "__main__":
    main()
