"""Quality of sequences (DNA, proteins, molecules): composition and k-mer spectrum against held-out ones.

divergence   Jensen-Shannon divergence of two k-mer distributions, in bits: 0 if equal, 1 if disjoint
floor        the same for pieces of held-out text as long as the samples: what perfect samples would have
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError

DRAWS = 8  # sets of held-out pieces for the floor


def kmer_codes(texts: Sequence[str], k: int, letters: str) -> np.ndarray:
    """A number for each k-mer of the texts, in the base of the alphabet; k-mers with other letters are left out."""
    table = np.full(0x110000, -1, np.int64)
    table[[ord(letter) for letter in letters]] = np.arange(len(letters))
    codes = [np.zeros(0, np.int64)]
    for text in texts:
        ids = table[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")]
        if len(ids) >= k:
            grams = np.lib.stride_tricks.sliding_window_view(ids, k)
            grams = grams[(grams >= 0).all(1)]
            codes.append(grams @ len(letters) ** np.arange(k - 1, -1, -1))
    return np.concatenate(codes)


def spectrum_divergence(one: np.ndarray, other: np.ndarray) -> float:
    """The Jensen-Shannon divergence of two samples of numbers, in bits."""
    if not len(one) or not len(other):
        return float("nan")
    values, place = np.unique(np.concatenate((one, other)), return_inverse=True)
    p = np.bincount(place[: len(one)], minlength=len(values)) / len(one)
    q = np.bincount(place[len(one) :], minlength=len(values)) / len(other)
    return letter_entropy((p + q) / 2) - (letter_entropy(p) + letter_entropy(q)) / 2


def letter_entropy(p: np.ndarray) -> float:
    """In bits."""
    return float(-(p[p > 0] * np.log2(p[p > 0])).sum())


def pieces_of(texts: Sequence[str], lengths: Sequence[int], *, seed: int) -> list[str]:
    """Random pieces of texts, of these lengths; a piece is as long as its text at most."""
    dice, sizes = np.random.default_rng(seed), np.array([len(text) for text in texts])
    chosen = dice.choice(len(texts), len(lengths), p=sizes / sizes.sum())
    pieces = []
    for i, length in zip(chosen.tolist(), lengths, strict=True):
        start = int(dice.integers(0, max(1, len(texts[i]) - length + 1)))
        pieces.append(texts[i][start : start + length])
    return pieces


def sequences_in(texts: Sequence[str]) -> list[str]:
    """The sequences of some texts: no letter is white space, and no k-mer goes across a line or a document."""
    return [part for text in texts for part in text.split()]


def assess_sequences(samples: Sequence[str], held_out: Sequence[str], *, k: int) -> dict[str, Any]:
    """Composition and the spectra of 1-mers to k-mers, beside those of held-out sequences."""
    samples, held_out = sequences_in(samples), sequences_in(held_out)
    plain = all(text.isalpha() for texts in (samples, held_out) for text in texts)
    if plain:  # DNA or proteins, in which lower case marks repeats; in SMILES it is another atom
        samples, held_out = [text.upper() for text in samples], [text.upper() for text in held_out]
    if len(samples) < 2:
        raise UserError(f"quality needs at least 2 samples that are not empty; saw {len(samples)}.")
    if not held_out:
        raise UserError("k-mers are compared with held-out sequences: give them with --train FILE.")
    alphabet = Counter("".join(samples))
    for text in held_out:
        alphabet.update(text)
    letters = "".join(sorted(alphabet))
    if k < 1 or len(letters) ** k > 2**60:
        raise UserError(f"--kmers must be at least 1 and {len(letters)}^k at most 2^60; saw {k}.")
    lengths = [len(text) for text in samples]
    spectra = []
    for size in range(1, k + 1):
        real = kmer_codes(held_out, size, letters)
        floors = [
            spectrum_divergence(kmer_codes(pieces_of(held_out, lengths, seed=seed), size, letters), real)
            for seed in range(DRAWS)
        ]
        distance = spectrum_divergence(kmer_codes(samples, size, letters), real)
        spectra.append({"k": size, "divergence": distance, "floor": float(np.mean(floors))})
    return {
        "samples": len(samples),
        "letters": sum(lengths),
        "upper_case": plain,
        "duplicates": 1 - len(set(samples)) / len(samples),
        "composition": {
            letter: {"samples": share_of(letter, samples), "held_out": share_of(letter, held_out)}
            for letter in letters
        },
        "spectra": spectra,
    }


def share_of(letter: str, texts: Sequence[str]) -> float:
    return sum(text.count(letter) for text in texts) / max(1, sum(map(len, texts)))
