"""What Markov chains of letters reach on the text of configs/studies/letters.toml, in bits per letter.

    python experiments/letter_chains.py runs/letters/data/*/text

Chains of order 0 to 4 are counted on the whole of train.txt and tested on the whole of test.txt.
"""

import argparse
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


def bits_per_letter(train: np.ndarray, test: np.ndarray, order: int) -> float:
    """The mean of −log2 p(letter | the `order` letters before it), of the letters that have so many before them."""
    counts = np.bincount(contexts(train, order), minlength=LETTERS ** (order + 1)).reshape(-1, LETTERS) + ADDED
    p = counts / counts.sum(1, keepdims=True)
    return float(-np.log2(p.reshape(-1)[contexts(test, order)]).mean())


def contexts(letters: np.ndarray, order: int) -> np.ndarray:
    """A number for each letter with the letters before it."""
    found = np.zeros(len(letters) - order, np.int64)
    for back in range(order + 1):
        found = found * LETTERS + letters[back : len(letters) - order + back]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with train.txt and test.txt, as the study lays them out")
    folder = parser.parse_args().folder
    train, test = (read_letters(folder / f"{split}.txt") for split in ("train", "test"))
    print(f"{len(train):,} letters to count, {len(test):,} to test")
    for order in range(5):
        print(f"order {order}: {bits_per_letter(train, test, order):.4f} bits per letter")


if __name__ == "__main__":
    main()
