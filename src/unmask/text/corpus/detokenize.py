"""Detokenizers: undo the word splitting of old benchmarks, exactly as the reference implementation does.

Each is a list of replacements in order. They keep the reference's quirks, because its published perplexities are of
this text: tests/golden/detokenizers.json holds its output for a dozen sentences. `letters` goes the other way: it
leaves the 27 characters of text8.
"""

import re
from collections.abc import Callable

from unmask.errors import unknown

Rule = tuple[re.Pattern[str], str]


def _plain(*pairs: tuple[str, str]) -> list[Rule]:
    return [(re.compile(re.escape(old)), new) for old, new in pairs]


def _inside(*brackets: str) -> list[Rule]:
    """Remove spaces just inside a pair of brackets or quotes: "( a )" becomes "(a)"."""
    return [
        (re.compile(rf"{re.escape(left)}\s*([^{re.escape(right)}]*?)\s*{re.escape(right)}"), rf"{left}\1{right}")
        for left, right in map(tuple, brackets)
    ]


WIKITEXT: list[Rule] = [
    *_plain(("s '", "s'")),
    *_plain((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")),
    *_plain(*((f" {mark} ", f"{mark} ") for mark in ":;.!?,")),
    *_inside("()", "[]", "{}", '""', "''"),
    *_plain(("= = = =", "===="), ("= = =", "==="), ("= =", "==")),
    *_plain((" ° ", "°"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")),
]
PTB: list[Rule] = [
    *_plain((" 's", "'s"), ("s ' ", "s' "), (" n't", "n't"), (" \n ", "\n"), ("\\/", "/")),
    *_plain(*[(" N ", " 1 ")] * 10),  # neighbours share a space, so once is not enough
    *_plain(("$ 1", "$1"), ("# 1", "#1"), ("<unk>", "?")),
]
LM1B: list[Rule] = [
    *_plain(("http : / / ", "http://"), ("https : / / ", "https://")),
    (re.compile(r" '(\w+)"), r"'\1"),
    (re.compile(r" (\w+) \. "), r" \1. "),
    (re.compile(r" (\w+) \.$"), r" \1."),
    *_plain((" ? ", "? ")),
    (re.compile(r" \?$"), "?"),
    *_plain((" ! ", "! ")),
    (re.compile(r" !$"), "!"),
    *_plain((" , ", ", "), (" : ", ": "), (" ; ", "; "), (" / ", "/")),
    *[(re.compile(rf"{q} ([^{q}]+) {q}"), rf"{q}\1{q}") for q in "\"'"],
    (re.compile(r"\( ([^()]+) \)"), r"(\1)"),
    (re.compile(r"\[ ([^\[\]]+) \]"), r"[\1]"),
    *_plain(("$ ", "$"), ("£ ", "£")),
]


def _by(about: str, rules: list[Rule]) -> Callable[[str], str]:
    def detokenize(text: str) -> str:
        for pattern, new in rules:
            text = pattern.sub(new, text)
        return text

    detokenize.__doc__ = about
    return detokenize


def lambada(text: str) -> str:
    """Straight quotes, and a newline in front."""
    return "\n" + text.replace("“", '"').replace("”", '"').strip()


DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPELLED = {ord(str(digit)): f" {name} " for digit, name in enumerate(DIGITS)}


def letters(text: str) -> str:
    """Text in 27 characters, made as text8: lower case, digits spelled, tags removed, all but a to z one space."""
    text = re.sub(r"<[^<>]*>", " ", text).lower().translate(SPELLED)
    return re.sub(r"[^a-z]+", " ", text).strip()


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "wikitext": _by("WikiText: joined words and marks, headings, numbers", WIKITEXT),
    "ptb": _by("Penn Treebank: joined words, numbers, '?' for unknown words", PTB),
    "lm1b": _by("One Billion Words: joined marks, quotes and brackets", LM1B),
    "lambada": lambada,
    "scientific": _by("PubMed and arXiv: those of WikiText, then of One Billion Words", [*WIKITEXT, *LM1B]),
    "letters": letters,
}


def detokenizer(name: str) -> Callable[[str], str]:
    """The detokenizer of a name; `none` leaves text as it is."""
    if name == "none":
        return lambda text: text
    if name not in DETOKENIZERS:
        raise unknown("detokenizer", name, ["none", *DETOKENIZERS])
    return DETOKENIZERS[name]
