"""Limits on a tokenizer.json: ids, lengths, regular expressions, and how much longer it can make a text.

Forty replacements of "a" by "aa" are a short file and a text of 10¹² letters; one token with the id 2³¹ is a list of
as many. What is bounded here is the worst case of any text, from the description alone: nothing is tried out.
"""

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from typing import Any

from unmask.errors import UserError
from unmask.text.tokens.backtracking import check_regex

BYTES = 40 << 20  # of a file; Gemma's, with 256,000 tokens, has 33 MB
IDS = 1 << 24
PIECE = 4_096  # characters of a token
TREE = 4_000_000  # characters of all tokens that the library keeps in a tree of letters
GROWTH = 4_096  # letters that one letter of a text may become; ALBERT's, the largest known, may reach 3,600
STEPS = 100  # normalizers, pre-tokenizers or decoders after each other
PREFIX = 100  # characters put before a text

# The largest growth of a letter in steps that have no settings, or whose settings do not matter.
FACTORS = {
    "NFC": 4,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
    "Lowercase": 3,
    "BertNormalizer": 12,
    "ByteLevel": 4,
    "Metaspace": 2,
    "CTC": 2,
    "BPEDecoder": 2,
    **dict.fromkeys(("Nmt", "Strip", "StripAccents", "Prepend"), 1),
    **dict.fromkeys(("Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"), 1),
    **dict.fromkeys(("UnicodeScripts", "CharDelimiterSplit", "FixedLength"), 1),
    **dict.fromkeys(("WordPiece", "Fuse", "ByteFallback"), 1),
}


def check_file(description: Mapping[str, Any]) -> None:
    """Refuse a tokenizer.json before the library reads it: regular expressions, ids, sizes."""
    for pattern in regexes(description):
        check_regex(pattern)
    model, added = description.get("model"), description.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    words = vocabulary if isinstance(vocabulary, dict) else {}
    listed = [one[0] for one in vocabulary if isinstance(one, list) and one] if isinstance(vocabulary, list) else []
    named = [one for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    check_ids([*words.values(), *(one.get("id") for one in named)])
    in_tree = [text for text in (*listed, *(one.get("content") for one in named)) if isinstance(text, str)]
    if sum(map(len, in_tree)) > TREE:
        raise UserError(f"its tokens have more than {TREE:,} characters together")
    if max(map(len, (*words, *in_tree)), default=0) > PIECE:
        raise UserError(f"a token has more than {PIECE:,} characters")


def check_ids(ids: list[Any]) -> None:
    for id in ids:
        if type(id) is not int or not 0 <= id < IDS:
            raise UserError(f"a token has the id {id!r:.40}: ids are whole numbers below {IDS:,}")


def regexes(value: Any) -> Iterator[str]:
    """Every regular expression of a description, wherever it is."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if isinstance(one.get("Regex"), str):
                yield one["Regex"]
            left += [inner for inner in one.values() if isinstance(inner, dict | list)]
        else:
            left += [inner for inner in one if isinstance(inner, dict | list)]


def check_growth(description: Mapping[str, Any]) -> None:
    """Refuse a tokenizer, as the library writes it, that can make a text too long in encoding or decoding."""
    model = description["model"]
    marks = [model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""]
    forth = growth(description["normalizer"]) * growth(description["pre_tokenizer"]) * (1 + len("".join(marks)))
    for what, factor in (("a text", forth), ("decoded text", growth(description["decoder"]))):
        if factor > GROWTH:
            raise UserError(f"it can make {what} more than {GROWTH:,} times longer")


def growth(step: Mapping[str, Any] | None) -> int:
    """The most letters that one letter can become."""
    if step is None:
        return 1
    kind = step["type"]
    if kind == "Sequence":
        steps = next(value for value in step.values() if isinstance(value, list))
        if len(steps) > STEPS:
            raise UserError(f"it has {len(steps)} steps after each other; at most {STEPS} are accepted")
        return math.prod(map(growth, steps))
    if kind == "Replace":
        return replace_growth(step["pattern"], step["content"])
    if kind == "Precompiled":
        return table_growth(step["precompiled_charsmap"])
    if kind == "Prepend" and len(step["prepend"]) > PREFIX:
        raise UserError(f"it puts {len(step['prepend'])} characters before a text; at most {PREFIX} are accepted")
    if kind not in FACTORS:
        raise UserError(f"it has a step of the kind {kind!r}, whose effect on long texts is not known")
    return FACTORS[kind]


def replace_growth(pattern: Mapping[str, str], content: str) -> int:
    """A text is replaced by a text; a regular expression may also match nothing, between any two letters."""
    if "Regex" in pattern or not pattern["String"]:
        return 1 + len(content)
    return max(1, -(-len(content) // len(pattern["String"])))


def table_growth(table: str) -> int:
    """A table of replacements, as sentencepiece writes it: the size of a tree, the tree, texts that end in a zero."""
    try:
        data = base64.b64decode(table)
    except (binascii.Error, ValueError):
        raise UserError("its table of replacements is damaged") from None
    size = int.from_bytes(data[:4], "little")
    return max(1, *(len(text) for text in data[4 + size :].split(b"\0")))
