"""The thousands: every attack of this folder at full length, one table of what survived.

    python tests/attack/long.py                                   # all of them, hours
    python tests/attack/long.py kills --tries 1000 --seed 1
    python tests/attack/long.py kills --tries 1000 --journal j    # again: goes on with the seeds that j has not
    python tests/attack/long.py --summary j                       # what has been tried so far, at any moment

An attack is a module of this folder with

    about: str                                     one line
    usual: int                                     tries of a long run
    attempt(seed: int, folder: Path) -> str | None what went wrong in one try, or None
    tally: Counter[str]                            where tries are of several kinds: how many of each

A try depends on its seed alone, so a failure is repeated with `--seed SEED --tries 1`.
"""

import argparse
import importlib
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
ATTACKS = sorted(
    path.stem
    for path in HERE.glob("*.py")
    if path.stem not in ("long", "conftest") and not path.stem.startswith("test_")
)


def tried(name: str, seed: int) -> dict[str, Any]:
    """One try of an attack: what went wrong, if anything, and what it counted."""
    attack = importlib.import_module(name)
    tally: Counter[str] = getattr(attack, "tally", Counter())
    before = tally.copy()
    folder = Path(tempfile.mkdtemp(prefix=f"attack-{name}-"))
    try:
        failure = attack.attempt(seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"attack": name, "seed": seed, "failure": failure, "tally": dict(tally - before)}


def read_journal(path: Path | None) -> list[dict[str, Any]]:
    """The tries of a journal; a line that a kill cut off is left out."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def summary(name: str, tries: list[dict[str, Any]]) -> str:
    """One line: tries and survivors, and below it what was counted."""
    attack = importlib.import_module(name)
    failed = sum(line["failure"] is not None for line in tries)
    row = f"{name}: {attack.about}: {len(tries):,} tries, {len(tries) - failed:,} survived"
    counts: Counter[str] = sum((Counter(line["tally"]) for line in tries), Counter())
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
    return f"{row}\n  {counts.total():,} in all: {kinds}" if counts else row


def run(name: str, seeds: range, journal: Path | None) -> int:
    """Run one attack and print its row; returns the number of failures."""
    tries = [line for line in read_journal(journal) if line["attack"] == name and line["seed"] in seeds]
    done = {line["seed"] for line in tries}
    for number in seeds:
        if number in done:
            continue
        tries.append(tried(name, number))
        if tries[-1]["failure"] is not None:
            print(f"{name} --seed {number}: {tries[-1]['failure']}", flush=True)
        if journal is not None:
            with journal.open("a") as file:
                file.write(json.dumps(tries[-1]) + "\n")
        if len(tries) % 100 == 0:
            print(summary(name, tries), flush=True)
    print(summary(name, tries), flush=True)
    return sum(line["failure"] is not None for line in tries)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the attacks at full length.")
    parser.add_argument("names", nargs="*", help=f"attacks: {', '.join(ATTACKS)}; none: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tries", type=int, default=None)
    parser.add_argument("--journal", type=Path, default=None, help="a line per try; seeds that it has are not tried")
    parser.add_argument("--summary", type=Path, default=None, help="print what a journal has and end")
    asked = parser.parse_args()
    for name in asked.names:
        if name not in ATTACKS:
            parser.error(f"no attack is called {name!r}; there are {', '.join(ATTACKS)}")
    if asked.summary is not None:
        lines = read_journal(asked.summary)
        for name in sorted({line["attack"] for line in lines}):
            print(summary(name, [line for line in lines if line["attack"] == name]))
            for line in lines:
                if line["attack"] == name and line["failure"] is not None:
                    print(f"  failed: --seed {line['seed']}: {line['failure'][-300:]}")
        return min(1, sum(line["failure"] is not None for line in lines))
    failed = 0
    for name in asked.names or ATTACKS:
        tries = asked.tries or importlib.import_module(name).usual
        failed += run(name, range(asked.seed, asked.seed + tries), asked.journal)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
