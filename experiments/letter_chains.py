"""What Markov chains of letters reach on the text of configs/studies/letters.toml, in bits per letter.

    python experiments/letter_chains.py runs/letters/data/*/text
    unmask sample runs/letters/rows/NAME/seed-1/train-*/run --n 8 --length 256 --seed 1 --json > name.jsonl
    python experiments/letter_chains.py runs/letters/data/*/text --samples *.jsonl

Chains of order 0 to 4 are counted on the whole of train.txt and tested on the whole of test.txt. With samples, each
file is tested instead: what a model of letter pairs writes is improbable under a chain of order 4, whatever bound the
model has. A text that repeats likely words would be too probable: read the samples too.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np

from unmask.text.corpus.documents import SEPARATOR

LETTERS = 27  # the space and a to z
ADDED = 0.1  # to every count


def read_letters(path: Path) -> np.ndarray:
    """The letters of a text as numbers: 0 for the space; documents are joined by a space."""
    text = path.read_text(encoding="ascii").replace(f"\n{SEPARATOR}\n", " ").rstrip()
    codes = np.frombuffer(text.encode("ascii"), np.uint8)
    return np.where(codes == ord(" "), 0, codes.astype(np.int64) - ord("a") + 1)


def numbers_of(text: str) -> np.ndarray:
    """The letters of a sample as numbers; what is no letter is a space."""
    letters = re.sub("[^a-z]+", " ", text).strip()
    return np.array([0 if one == " " else ord(one) - ord("a") + 1 for one in letters], np.int64)


def chain(train: np.ndarray, order: int) -> np.ndarray:
    """p(letter | the `order` letters before it), by context and letter."""
    counts = np.bincount(contexts(train, order), minlength=LETTERS ** (order + 1)).reshape(-1, LETTERS) + ADDED
    return np.asarray(counts / counts.sum(1, keepdims=True)).reshape(-1)


def bits_per_letter(p: np.ndarray, test: np.ndarray, order: int) -> float:
    """The mean of −log2 p(letter | the `order` letters before it), of the letters that have so many before them."""
    return float(-np.log2(p[contexts(test, order)]).mean())


def written(p: np.ndarray, order: int, letters: int, random: np.random.Generator) -> np.ndarray:
    """A text that a chain writes, after as many spaces as it looks back."""
    text = [0] * order
    for _ in range(letters):
        at = 0
        for one in text[len(text) - order :]:
            at = at * LETTERS + one
        text.append(int(random.choice(LETTERS, p=p[at * LETTERS : (at + 1) * LETTERS])))
    return np.array(text[order:], np.int64)


def contexts(letters: np.ndarray, order: int) -> np.ndarray:
    """A number for each letter with the letters before it."""
    found = np.zeros(len(letters) - order, np.int64)
    for back in range(order + 1):
        found = found * LETTERS + letters[back : len(letters) - order + back]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with train.txt and test.txt, as the study lays them out")
    parser.add_argument("--samples", type=Path, nargs="*", default=[], help=".jsonl files of `unmask sample --json`")
    asked = parser.parse_args()
    train, test = (read_letters(asked.folder / f"{split}.txt") for split in ("train", "test"))
    if asked.samples:
        chains, random = {order: chain(train, order) for order in (1, 2, 3, 4)}, np.random.default_rng(1)
        samples = {
            f"chain of order {order}": [written(chains[order], order, 256, random) for _ in range(8)]
            for order in (1, 2, 3)
        }
        for path in asked.samples:
            lines = path.read_text(encoding="utf-8").splitlines()
            samples[path.stem] = [numbers_of(json.loads(line)["text"]) for line in lines]
        print("text                  order 2        order 4, bits per letter")
        for name, texts in samples.items():
            told = [np.array([bits_per_letter(chains[order], one, order) for one in texts]) for order in (2, 4)]
            each = (f"{one.mean():.3f} ± {one.std(ddof=1) / len(one) ** 0.5:.3f}" for one in told)
            print(f"{name:20}", *each, sep="  ")
        return
    print(f"{len(train):,} letters to count, {len(test):,} to test")
    for order in range(5):
        print(f"order {order}: {bits_per_letter(chain(train, order), test, order):.4f} bits per letter")


if __name__ == "__main__":
    main()
