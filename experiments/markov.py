"""What Markov chains of order k reach on the regions of a FASTA file, for comparison with networks (Table 6).

    python experiments/markov.py DATA/dna configs/paper/table6.bed

p(x | its k bases before) is a mixture of all orders up to k (Witten-Bell): an order counts as much as its context has
been seen, against the number of different bases that followed it. Counted on train, measured on test. N ends a
context and is not scored. Prints nats per base and perplexity; a uniform model has log 4 = 1.3863 and 4.
"""

import sys
import time
from collections.abc import Iterator

import numpy as np

from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.sources import gather
from unmask.text.corpus.tokenized import whole_documents
from unmask.text.tokens.vocabulary import dna

ORDERS = (0, 4, 8, 11)
PART = 1 << 22  # bases at a time


def contexts(ids: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """Each base with the k bases before it, as a number in base 4, a few million at a time."""
    for start in range(0, len(ids) - k, PART):
        some = ids[start : start + PART + k].astype(np.int64)
        code, clean = np.zeros(len(some) - k, np.int64), np.ones(len(some) - k, bool)
        for j in range(k + 1):
            here = some[j : len(some) - k + j]
            code, clean = 4 * code + here, clean & (here < 4)
        yield code[clean]


def counted(texts: list[np.ndarray], k: int) -> np.ndarray:
    """How often each base follows each context of k bases (4^k 4)."""
    table = np.zeros(4 ** (k + 1), np.int64)
    for ids in texts:
        for codes in contexts(ids, k):
            table += np.bincount(codes, minlength=len(table))
    return table.reshape(-1, 4)


def chain(texts: list[np.ndarray], order: int) -> np.ndarray:
    """p(base | context) for all contexts of `order` bases (4^order 4)."""
    p = np.full((1, 4), 0.25)
    for k in range(order + 1):
        table = counted(texts, k)
        seen, kinds = table.sum(1, keepdims=True), (table > 0).sum(1, keepdims=True)
        lower = np.tile(p, (4, 1)) if k else p  # of the context without its first base
        p = np.where(seen > 0, (table + kinds * lower) / np.maximum(seen + kinds, 1), lower)
    return p


def nats(p: np.ndarray, texts: list[np.ndarray], order: int) -> float:
    """−log p per base; the first bases of a text, whose context is short, are left out."""
    total = number = 0.0
    for ids in texts:
        for codes in contexts(ids, order):
            total -= float(np.log(p.flatten()[codes]).sum())
            number += len(codes)
    return total / number


def read(source: str, bed: str) -> dict[str, list[np.ndarray]]:
    layout, tokenizer = FileLayout(intervals=bed), dna()
    with gather(source, layout) as sources:
        found: dict[str, list[np.ndarray]] = {}
        for one in sources:
            texts: Iterator[str] = whole_documents(one.pieces(layout))
            found.setdefault(str(one.split), []).extend(tokenizer.encode_batch(list(texts)))
    return found


def main(source: str, bed: str) -> None:
    began, texts = time.perf_counter(), read(source, bed)
    for split, some in sorted(texts.items()):
        print(f"{split}: {sum(int((ids < 4).sum()) for ids in some):,} bases")
    print("order  nats per base  perplexity")
    for order in ORDERS:
        found = nats(chain(texts["train"], order), texts["test"], order)
        print(f"{order:5d}  {found:13.4f}  {np.exp(found):10.4f}")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
