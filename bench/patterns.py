r"""Regular expressions as automata over tokens: ours against outlines-core, in time, size and what they accept.

    pip install outlines-core               # it is no dependency of unmask
    python bench/patterns.py                # the vocabulary of the shipped model
    python bench/patterns.py hf:gpt2        # any byte-level one: a name on the hub, or a folder

outlines-core gets each pattern as it is written, and once more spelled so that it means the same to it: with an end
anchor, and [0-9] for \d. Times are of the second spelling, where it takes it. `table` is that and what the sampler
needs on top: tokens in classes and one dense table. What is accepted is compared for all sequences of tokens, by
walking through both automata at once; where they differ, Python's re says who is right. Rounds are interleaved, and
medians taken.
"""

import argparse
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

import unmask
from unmask.errors import UserError
from unmask.sampling.patterns import tokens
from unmask.sampling.patterns.form import pattern_of
from unmask.sampling.patterns.regex import machine_of
from unmask.sampling.patterns.tokens import Automaton, Words, over_tokens, words_of
from unmask.text.tokens.tokenizer import Tokenizer

try:
    from outlines_core import Index, Vocabulary
except ImportError:
    print("outlines-core is not installed, so there is nothing to compare with: pip install outlines-core")
    raise SystemExit(0) from None

SYLLABLES = ("ba", "ker", "do", "mi", "sto", "ne", "ra", "lin", "go", "per", "ta", "us")
DICE = random.Random(0)
WORDS = dict.fromkeys("".join(DICE.choices(SYLLABLES, k=DICE.randint(1, 4))) for _ in range(400))  # some start others
EXPLOSIVE = "[ab]*a[ab]{14}"  # its smallest automaton has 32,768 states, and each further count doubles them
PATTERNS = {
    "form": pattern_of('{"name": <string>, "age": <int>}'),
    "number": pattern_of("<number>"),
    "date": r"\d{4}-\d{2}-\d{2}",
    "choice": "(yes|no|maybe)",
    "e-mail": r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,6}",
    ".{1,200}": ".{1,200}",
    "unicode": "[à-ÿ]{2,8} [А-Яа-яё]+|[一-鿿]{1,4}",
    "200 words": "|".join([*WORDS][:200]),
    "nested": r"(?:(?:[a-z]{2,4} ){1,5}\d{1,3}; ){1,10}",
    "or nothing": "(?:[a-z]+ )*?",
}


def respelled(pattern: str) -> str:
    return rf"(?:{pattern})\z".replace(r"\d", "[0-9]")


def vocabulary(words: Words) -> Vocabulary:
    ids: dict[bytes, list[int]] = {}
    for id, word in enumerate(words.later):
        if word:
            ids.setdefault(word, []).append(id)
    return Vocabulary(words.end, ids)


def as_table(index: Index, words: Words) -> Automaton:
    """An index in the form that the sampler reads: one dense table over classes of tokens."""
    moves, finals, start = index.get_transitions(), index.get_final_states(), index.get_initial_state()
    met = {start, *moves, *(to for row in moves.values() for to in row.values())}
    states = [start, start, start, *(met - {start})]  # two more starts: of a text, and behind given text
    end, dead = len(states), len(states) + 1
    place = np.zeros(max(met) + 1, np.int32)
    place[states] = np.arange(len(states))
    table = np.full((len(states) + 2, len(words.later)), dead, np.int32)
    for here, state in enumerate(states):
        row = moves.get(state, {})
        table[here, np.fromiter(row, np.int64, len(row))] = place[np.fromiter(row.values(), np.int64, len(row))]
    accepts = np.array([*(state in finals for state in states), True, False])
    table[:, words.end] = dead  # behind eos an index is where it was, so that text could go on
    table[np.flatnonzero(accepts), words.end] = end
    table[end, words.end] = end
    classes, first = tokens.same_columns(table)
    small = np.concatenate([tokens.without_dead_ends(table[:, first], accepts), tokens.special_moves(accepts)], 1)
    return Automaton(torch.from_numpy(classes), torch.from_numpy(small.astype(np.int64)), torch.from_numpy(accepts))


def difference(ours: Automaton, theirs: Automaton, words: Words) -> tuple[bytes, bool] | None:
    """A text of fewest tokens that only one of them accepts, and whether it is ours; None: there is none."""
    kinds, first = np.unique(np.stack([ours.classes, theirs.classes]), axis=1, return_index=True)
    left, right = ours.table.numpy()[:, kinds[0]], theirs.table.numpy()[:, kinds[1]]
    queue, seen = [(0, 0, b"")], {(0, 0)}
    for a, b, text in queue:
        if ours.accepts[a] != theirs.accepts[b]:
            return text, bool(ours.accepts[a])
        after, via = np.unique(np.stack([left[a], right[b]]), axis=1, return_index=True)
        for (x, y), kind in zip(after.T.tolist(), via, strict=True):
            if (x, y) not in seen:
                seen.add((x, y))
                queue.append((x, y, text + words.later[first[kind]]))
    return None


def verdict(pattern: str, index: Index | str, words: Words) -> str:
    """How an index differs from our automaton of the pattern, and who is right: Python's re says."""
    if isinstance(index, str):
        return f"refused ({index})"
    found = difference(over_tokens(machine_of(pattern), words), as_table(index, words), words)
    if found is None:
        return "the same"
    text, only_ours = found[0].decode(errors="replace"), found[1]
    right = "ours" if only_ours == bool(re.fullmatch(pattern, text, re.ASCII)) else "theirs"
    shown = text if len(text) <= 40 else "..." + text[-37:]
    return f"only {'ours' if only_ours else 'theirs'} matches {shown!r}, right: {right}"


def built(pattern: str, theirs: Vocabulary) -> Index | str:
    """An index, or why there is none."""
    try:
        return Index(pattern, theirs)
    except ValueError as error:
        return str(error)


def medians(jobs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Milliseconds of each job."""
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(rounds):
        for job, taken in zip(jobs, times, strict=True):
            start = time.perf_counter()
            job()
            taken.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(taken) for taken in times]


def jobs(pattern: str, spelling: str, theirs: Vocabulary, words: Words) -> list[Callable[[], object]]:
    return [
        lambda: over_tokens(machine_of(pattern), words),
        lambda: Index(spelling, theirs),
        lambda: as_table(Index(spelling, theirs), words),
    ]


def limits(theirs: Vocabulary) -> str:
    """What becomes of a pattern that explodes."""
    start = time.perf_counter()
    try:
        machine_of(EXPLOSIVE)
        ours = "builds"
    except UserError:
        ours = "refuses"
    between = time.perf_counter()
    Index(respelled(EXPLOSIVE), theirs)
    after = time.perf_counter()
    return f"{EXPLOSIVE}: ours {ours} it in {between - start:.2f} s, theirs builds it in {after - between:.2f} s"


def report(name: str, tokenizer: Tokenizer, rounds: int) -> None:
    words = words_of(tokenizer)
    theirs = vocabulary(words)
    print(f"\n{name}: {len(words.later):,} tokens; ms, median of {rounds} rounds")
    print("                ours  theirs   table | theirs/ours  table/ours |  states x classes  their moves")
    for label, pattern in PATTERNS.items():
        spelling = pattern if isinstance(built(respelled(pattern), theirs), str) else respelled(pattern)
        a, b, c = medians(jobs(pattern, spelling, theirs, words), rounds)
        states, classes = over_tokens(machine_of(pattern), words).table.shape
        moves = sum(map(len, Index(spelling, theirs).get_transitions().values()))
        size = f"{states:7,} x {classes:<7} {moves:12,}"
        print(f"  {label:<10} {a:7.1f} {b:7.1f} {c:7.1f} | {b / a:11.2f} {c / a:11.2f} | {size}", flush=True)
    print(f"  {limits(theirs)}")
    print("  what outlines-core accepts, against ours: as written; with the second spelling")
    for label, pattern in PATTERNS.items():
        asked = (built(pattern, theirs), built(respelled(pattern), theirs))
        print(f"  {label:<10} " + "; ".join(verdict(pattern, index, words) for index in asked), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", nargs="*", help="folders or hub names; none: the shipped model's")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for path in options.tokenizers or ["the shipped model"]:
        report(path, Tokenizer.load(path) if options.tokenizers else unmask.load("stories").tokenizer, options.rounds)


if __name__ == "__main__":
    main()
