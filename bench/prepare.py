"""How fast text becomes shards on one and two workers, and what a batch costs beside a training step.

    python bench/prepare.py [SOURCE]

Without a source it makes its own text: words drawn with the frequencies of Python's help pages. Workers are
timed in turn, several times, and the median is shown; the ratio is what to compare between machines.
"""

import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

from unmask.model.passes.whole import logits_at
from unmask.text.corpus.corpus import Corpus
from unmask.text.corpus.documents import FileLayout
from unmask.text.corpus.prepare import choose, prepare
from unmask.text.corpus.shards import Division
from unmask.text.corpus.sources import gather, texts
from unmask.text.tokens.tokenizer import Tokenizer

MEGABYTES = 24
ROUNDS = 3
LENGTH, ROWS, VOCAB = 128, 32, 4096


def write_text(path: Path) -> None:
    """Documents of about a thousand characters, separated by <|endoftext|>."""
    words = re.findall(r"\S+\s*", "".join(topics.values()))
    draw = random.Random(0)
    with path.open("w") as file:
        while file.tell() < MEGABYTES * 1e6:
            file.write("".join(draw.choices(words, k=150)) + "<|endoftext|>")


def text_bytes(source: str) -> int:
    with gather(source) as sources:
        return sum(len(text.encode()) for text in texts(sources, FileLayout()))


def seconds(source: str, tokenizer: Tokenizer, workers: int) -> float:
    with tempfile.TemporaryDirectory() as out, gather(source) as sources:
        start = time.perf_counter()
        for _ in prepare(sources, tokenizer, out, division=Division(valid=0), workers=workers):
            pass
        return time.perf_counter() - start


def throughput(source: str) -> None:
    size = text_bytes(source) / 1e6
    with gather(source) as sources:
        kinds = {kind: choose(kind, sources, size=VOCAB) for kind in ("byte", "character", "bpe")}
    print(f"{size:.1f} MB of text; start of the worker processes included")
    print(f"{'tokenizer':<10} {'1 worker':>10} {'2 workers':>10} {'ratio':>6}")
    for kind, tokenizer in kinds.items():
        taken: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(ROUNDS):
            for workers, times in taken.items():
                times.append(seconds(source, tokenizer, workers))
        one, two = (size / statistics.median(times) for times in taken.values())
        print(f"{kind:<10} {one:>7.1f} MB/s {two:>5.1f} MB/s {two / one:>6.2f}")


def median(action: Callable[[int], object], rounds: int) -> float:
    times = []
    for step in range(rounds):
        start = time.perf_counter()
        action(step)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def batch_cost(source: str) -> None:
    """Beside a small step on a CPU: forward and backward, no optimizer."""
    # Imported here because the worker processes above import this file too, and need none of it.
    import torch

    from unmask.model.backbones.transformer import Architecture, Transformer
    from unmask.text.corpus.batches import Batches
    from unmask.text.corpus.packed import pack_corpus
    from unmask.text.layout import LAYOUTS

    network = Transformer(Architecture(vocab=VOCAB, length=LENGTH, width=256, blocks=6, heads=4))
    with tempfile.TemporaryDirectory() as out, gather(source) as sources:
        tokenizer = choose("bpe", sources, size=VOCAB)
        for _ in prepare(sources, tokenizer, out, division=Division(valid=0)):
            pass
        tokens = torch.randint(VOCAB, (ROWS, LENGTH))
        rows = torch.arange(0, ROWS * LENGTH, 2)

        def train(_: int) -> None:
            logits = logits_at(network, tokens, torch.zeros(ROWS), rows)
            torch.nn.functional.cross_entropy(logits, tokens.flatten()[rows]).backward()

        step = median(train, 6)
        print(f"\nstep of {ROWS} x {LENGTH}, 256 wide, 6 blocks, {VOCAB} ids: {1000 * step:.0f} ms")
        for way in LAYOUTS:
            batches = Batches(pack_corpus(Corpus.open(out), LENGTH, way), ROWS)
            cost = median(batches.at, 200)
            print(f"batch, {way:<7} {1000 * cost:>6.2f} ms  {100 * cost / step:>5.2f} % of the step")


def main() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one worker means one core
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            source = sys.argv[1]
        else:
            source = str(Path(folder) / "text.txt")
            write_text(Path(source))
        throughput(source)
        batch_cost(source)


if __name__ == "__main__":
    main()
