"""What became slower or faster between two records of bench/page.py.

    python bench/compare.py old.json new.json

Compared are ratios, each job's time over that of its matrix products in the same round, so records of two machines or
of two days can be compared. The interval of 95 % is of the ratio of both medians, by resampling the rounds of each
record. Said to be slower or faster: what lies outside the interval and differs by more than `--least`. The exit code
is 1 if anything became slower.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import tyro

DRAWS = 2000


@dataclass(frozen=True)
class Settings:
    old: Annotated[Path, tyro.conf.Positional]
    new: Annotated[Path, tyro.conf.Positional]
    least: float = 0.03
    """Smaller changes are not reported."""


def ratios(one: dict[str, list[float]]) -> list[float]:
    return [a / b for a, b in zip(one["seconds"], one["products"], strict=True)]


def change(old: list[float], new: list[float], *, seed: int = 0) -> tuple[float, float, float]:
    """Median of new over median of old, with its interval of 95 %."""
    dice = random.Random(seed)
    drawn = sorted(
        median(dice.choices(new, k=len(new))) / median(dice.choices(old, k=len(old))) for _ in range(DRAWS)
    )
    return median(new) / median(old), drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]


def verdict(found: tuple[float, float, float], least: float) -> str:
    value, low, high = found
    if low > 1 and value > 1 + least:
        return "slower"
    return "faster" if high < 1 and value < 1 - least else "as before"


def compared(
    old: dict[str, Any], new: dict[str, Any], least: float
) -> list[tuple[str, tuple[float, float, float], str]]:
    """Every job that both records have: new over old, and what that means."""
    both = [name for name in old["jobs"] if name in new["jobs"]]
    found = [(name, change(ratios(old["jobs"][name]), ratios(new["jobs"][name]))) for name in both]
    return [(name, one, verdict(one, least)) for name, one in found]


def main(settings: Settings) -> int:
    old, new = (json.loads(path.read_text()) for path in (settings.old, settings.new))
    found = compared(old, new, settings.least)
    wide = max((len(name) for name, _, _ in found), default=0)
    for name, (value, low, high), said in found:
        print(f"{name.ljust(wide)}  {value:5.2f}  ({low:.2f} to {high:.2f})  {said}")
    for name in sorted(set(old["jobs"]) ^ set(new["jobs"])):
        print(f"{name}: only in the {'old' if name in old['jobs'] else 'new'} record")
    return int(any(said == "slower" for _, _, said in found))


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Settings, description=__doc__)))
