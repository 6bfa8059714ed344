"""Hostile patterns, forms and sets of allowed tokens: refused in words, or a constraint that every sample obeys."""

import random
import re
import signal
import warnings
from functools import cache
from pathlib import Path

import torch

from confined import confined
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import fill
from unmask.sampling.patterns.constraint import Constraint, matching, one_of
from unmask.sampling.patterns.form import HOLES, pattern_of
from unmask.sampling.patterns.tokens import words_of
from unmask.sampling.policies.confidence import Leftmost, Ordered
from unmask.sampling.policies.parallel import Threshold
from unmask.sampling.policies.planned import Ancestral, FirstHitting, Groups
from unmask.sampling.policies.remask import Remask
from unmask.text.prompt.canvas import of_tokens
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.text.tokens.vocabulary import bpe

about = "grammar-made patterns and forms: refused, or obeyed by every sample, within 30 s of CPU and 1 GB"
usual = 5_000
STATES = (50, 2_000, 20_000)  # of a test, a server, the command line
COUNTS = (0, 0, 1, 1, 2, 3, 7, 40, 300, 1_900, 19_000, 70_000, 4_294_967_294, 4_294_967_295, 2**40)
EMPTY = ("", "()", "(?:)", "(?:|)", "(?:a{0})", "(?i:)", "(?:(?:)*)", "(?:){1,4294967294}", "(|){3,9}")
ATOMS = (*"ab .é日\U0001f600", "ab", "the ", r"\d", r"\w", r"\s", r"\S", r"\W", r"\.", "[ab]", "[^a]")
ODD = (*"^$([{\\\0", r"\b", r"(a)\1", "(?=a)", "(?<!a)", "(?>a)", "a*+", "(?P<n>a)", "(?#x)", "(?-i:A)")
PLANNED = (FirstHitting(), Ancestral(3), Groups(calls=3), Remask(steps=5))
POLICIES = (*PLANNED, Ordered("entropy"), Leftmost(), Threshold())
LONGEST = 15_000  # characters of a repeated part; a few together are more than is taken
PATIENCE = 3  # seconds of CPU for Python's re, which may take for ever


@cache
def vocabulary() -> Tokenizer:
    return bpe(["the cat sat on the mat 12 times, ab abab", 'a "name": true, [1, 2] café'] * 4, 320)


def repeat(dice: random.Random) -> str:
    low, high = sorted(dice.choices(COUNTS, k=2))
    counts = (f"{{{low}}}", f"{{{high}}}", f"{{{low},}}", f"{{,{high}}}", f"{{{low},{high}}}")
    return dice.choice(("*", "+", "?", "*?", "+?", *counts))


def ranges(dice: random.Random) -> str:
    """A class of many ranges, which overlap or do not."""
    first, last = dice.choice([(0x20, 0x7E), (0xA0, 0x7FF), (0x20, 0xFFFF), (0x800, 0x10FFFF)])
    found = []
    for _ in range(dice.choice([1, 3, 20, 400, 4_000])):
        a = dice.randint(first, last)
        b = min(last, a + dice.choice([0, 1, 40, 5_000]))
        found.append("-".join(re.escape(chr(c)) for c in (a, b)))
    return f"[{dice.choice(['', '^'])}{''.join(found)}]"


def pattern(dice: random.Random, depth: int) -> str:
    """A pattern made of patterns."""
    if depth <= 0 or dice.random() < 0.15:
        return dice.choice([dice.choice(ATOMS), dice.choice(EMPTY), ranges(dice) if dice.random() < 0.2 else "a"])
    kind, inner = dice.random(), lambda: pattern(dice, depth - 1)
    if kind < 0.3:
        return "".join(inner() for _ in range(dice.randint(1, 4)))
    if kind < 0.65:
        return dice.choice(["(?:{})", "({})", "(?i:{})", "(?s:{})"]).format(inner()) + repeat(dice)
    if kind < 0.85:
        choices = [inner() for _ in range(dice.choice([2, 3]))]
        return "(?:" + "|".join(choices * many(dice, choices, 1, 1, 10, 2_000)) + ")"
    if kind < 0.9:
        deep = dice.choice([2, 30, 900, 20_000])
        return "(?:" * deep + inner() + ")" * deep
    if kind < 0.95:
        part = inner()
        return part * many(dice, [part], 2, 20, 3_000)
    return inner() + dice.choice(EMPTY) * dice.choice([1, 50, 9_000])


def many(dice: random.Random, parts: list[str], *counts: int) -> int:
    """One of these counts, less where the parts are long."""
    return min(dice.choice(counts), 1 + LONGEST // (1 + sum(map(len, parts))))


def form(dice: random.Random) -> str:
    parts = []
    for _ in range(dice.choice([1, 2, 5, 60])):
        name = "list " * dice.choice([0, 0, 1, 3, 8, 9, 400]) + dice.choice([*HOLES, "yes|no|", "x"])
        parts.append(dice.choice(["", "a", ", ", "\\<", '{"']) + f"<{name}>")
    return "".join(parts)


def scratched(dice: random.Random, text: str) -> str:
    """A text with a few characters lost, doubled or replaced."""
    for _ in range(dice.choice([0, 0, 0, 0, 0, 1, 3])):
        at = dice.randrange(len(text) + 1)
        text = text[:at] + dice.choice([*ODD, text[at : at + 5]]) + text[at + dice.randint(0, 2) :]
    return text


def sets(dice: random.Random, length: int) -> dict[int, list[int]]:
    """Allowed tokens at no position, at some or at all: equal, or each its own."""
    size, share = vocabulary().size, dice.choice([0, 0, 0, 0.2, 1])
    usual_ids = dice.sample(range(size), dice.choice([1, size // 2, size - 1]))
    own = dice.random() < 0.5
    places = [place for place in range(length) if dice.random() < share]
    return {place: dice.sample(range(size), size // 2) if own else usual_ids for place in places}


def obeys(wanted: str, text: str) -> bool:
    """Whether Python's re agrees; true where it cannot say in time."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of sets that a later Python may read otherwise
            return re.fullmatch(wanted, text, re.ASCII) is not None
    except (TimeoutError, MemoryError, RecursionError):
        return True
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def attempt(seed: int, folder: Path) -> str | None:
    told = outcome(seed)
    return told if "failed:" in told else None


def outcome(seed: int) -> str:
    """What came of one try."""
    dice, tokenizer = random.Random(seed), vocabulary()
    kind = dice.choice(["pattern"] * 6 + ["form", "texts"])
    texts = [pattern(dice, 1) for _ in range(dice.choice([1, 3, 40, 3_000]) if kind == "texts" else 0)]
    made = scratched(dice, form(dice) if kind == "form" else pattern(dice, dice.randint(1, 6)))
    length, policy = dice.choice([1, 4, 12, 40]), dice.choice(POLICIES)
    options = {"whole": dice.random() < 0.3, "ends": dice.random() < 0.7, "largest": dice.choice(STATES)}
    given = dice.choice([[], [], tokenizer.encode("the cat ")])
    allowed = sets(dice, length + len(given))

    def use() -> None:
        torch.set_num_threads(1)  # threads do not survive a fork
        words = words_of(tokenizer)
        wanted = "|".join(map(re.escape, texts)) if kind == "texts" else pattern_of(made) if kind == "form" else made
        found = one_of(texts, words, **options) if kind == "texts" else matching(wanted, words, **options)
        limited = Constraint(found.automaton, allowed, found.whole, found.about)
        row = [*given, *[tokenizer.mask] * length]
        canvas = of_tokens(torch.tensor([row, row]), mask=tokenizer.mask)
        noise = torch.Generator().manual_seed(seed)

        def network(x_t: torch.Tensor, sigma: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return 3 * torch.randn(len(rows), tokenizer.size, generator=noise)

        for step in fill(network, canvas, policy, seed=seed, options=LogitOptions(constraint=limited)):
            canvas = step.canvas
        for drawn in canvas.tokens.tolist():
            assert tokenizer.mask not in drawn, "a mask is left"
            assert drawn[: len(given)] == given, "given text has changed"
            for place, ids in allowed.items():
                assert drawn[place] in ids or place < len(given), f"token {drawn[place]} at position {place}"
            text = tokenizer.decode(drawn if options["whole"] else drawn[len(given) :])
            assert obeys(wanted, text), f"{text!r} does not match"

    told = confined(use, seconds=30)
    return f"{kind} {made[:80]!r} {options} {policy}\n{told}"
