"""The distance of diffusion to AR by compute: what configs/studies/words.toml measured, and the paper's two points.

    python experiments/distance.py runs/words/table.json --out docs/pictures/distance.png

The paper's points are the logarithms of the ratios of its Table 1 (MDLM to AR, 33 and 327 billion tokens, 110 million
parameters), at six FLOPs per parameter and token.
"""

import argparse
import json
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

from unmask.views.figure import COLOURS, legend, panels

PARAMETERS = 110e6
PAPER = [(6 * PARAMETERS * 33e9, log(27.04 / 22.32)), (6 * PARAMETERS * 327e9, log(23.00 / 20.86))]
BOUND, EXACT = "nats", "left to right"


def distances(table: Mapping[str, Any], column: str) -> dict[str, list[tuple[float, float]]]:
    """By group of rows: FLOP, and nats above the AR row of the same FLOP."""
    number = [one["name"] for one in table["columns"]].index(column)
    nats: dict[str, dict[float, float]] = {}
    for row in table["rows"]:
        value = row["cells"][number]["value"]
        if value is not None and "flops" in row["changes"]:
            nats.setdefault(row["group"], {})[row["changes"]["flops"]] = value
    base = nats.pop("AR", {})
    shared = {
        group: sorted((flops, value - base[flops]) for flops, value in points.items() if flops in base)
        for group, points in nats.items()
    }
    return {group: points for group, points in shared.items() if points}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="table.json of the study, or its record")
    parser.add_argument("--out", type=Path, required=True, help="picture to write")
    asked = parser.parse_args()
    table = json.loads(asked.table.read_text(encoding="utf-8"))
    figure, (axes,) = panels(1, width=8)
    groups = list(distances(table, BOUND))
    for column, style, note in ((BOUND, "o-", "bound"), (EXACT, "s--", "left to right")):
        for group, points in distances(table, column).items():
            colour = COLOURS[groups.index(group) % len(COLOURS)]
            axes.plot(*zip(*points, strict=True), style, color=colour, ms=5, lw=1.2, label=f"{group}, {note}")
            for flops, nats in points:
                print(f"{group}, {note}: {flops:.0e} FLOP, {nats:+.3f} nats per token above AR")
    axes.plot(
        *zip(*PAPER, strict=True), "D", color=COLOURS[len(groups) % len(COLOURS)], label="MDLM, the paper, bound"
    )
    for flops, nats in PAPER:
        print(f"the paper: {flops:.1e} FLOP, {nats:+.3f}")
    axes.set(xscale="log", xlabel="FLOP of training", ylabel="nats per token above AR")
    legend(axes)
    figure.savefig(asked.out, dpi=150)


if __name__ == "__main__":
    main()
