"""The thousands: every attack of this folder at full length, one table of what survived.

    python tests/attack/long.py                    # all of them, hours
    python tests/attack/long.py kills --tries 1000 --seed 1

An attack is a module of this folder with

    about: str                                     one line
    usual: int                                     tries of a long run
    attempt(seed: int, folder: Path) -> str | None what went wrong in one try, or None

A try depends on its seed alone, so a failure is repeated with `--seed SEED --tries 1`.
"""

import argparse
import importlib
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
ATTACKS = sorted(
    path.stem
    for path in HERE.glob("*.py")
    if path.stem not in ("long", "conftest") and not path.stem.startswith("test_")
)


def run(name: str, seed: int, tries: int | None) -> int:
    """Run one attack and print its row; returns the number of failures."""
    attack = importlib.import_module(name)
    tries = tries or attack.usual
    failures: Counter[str] = Counter()
    for number in range(seed, seed + tries):
        folder = Path(tempfile.mkdtemp(prefix=f"attack-{name}-"))
        try:
            told = attack.attempt(number, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if told is not None:
            failures[told.splitlines()[-1][:100]] += 1
            print(f"{name} --seed {number}: {told}", flush=True)
        if (number - seed + 1) % 100 == 0:
            print(f"{name}: {number - seed + 1:,} of {tries:,} tries, {failures.total()} failed", flush=True)
    print(f"{name}: {attack.about}: {tries:,} tries, {tries - failures.total():,} survived", flush=True)
    return failures.total()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the attacks at full length.")
    parser.add_argument("names", nargs="*", help=f"attacks: {', '.join(ATTACKS)}; none: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tries", type=int, default=None)
    asked = parser.parse_args()
    for name in asked.names:
        if name not in ATTACKS:
            parser.error(f"no attack is called {name!r}; there are {', '.join(ATTACKS)}")
    return min(1, sum(run(name, asked.seed, asked.tries) for name in asked.names or ATTACKS))


if __name__ == "__main__":
    sys.exit(main())
