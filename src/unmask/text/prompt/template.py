r"""Template: a text with blanks, "The ___ sat on the [5]."

    [5]      a blank of five tokens
    [2-6]    a blank of two to six tokens
    ___      a blank of any length, chosen by likelihood (three underscores or more)
    \[ \_    a literal bracket or underscore; \\ is a backslash

Any other bracket, "[sic]", is text. The given text never changes, and each part of it is tokenized separately. In BPE
vocabularies a word begins with its space, and a space before a blank would be a separate token, which such models
have hardly seen: `heal_spaces` removes it and lets the blank begin with a space.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from unmask.errors import UserError
from unmask.text.tokens.tokenizer import Tokenizer, encode_given

MARK = re.compile(r"\\(?P<literal>[\[_\\])|\[(?P<least>\d{1,9})(?:-(?P<most>\d{1,9}))?\]|(?P<free>_{3,})")

Lengths = tuple[int, ...]  # one for each blank


@dataclass(frozen=True)
class Blank:
    """Tokens to be filled in: at least `least`, at most `most`."""

    least: int
    most: int
    spaced: bool = False  # its first token carries the space before it

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UserError(
                f"a blank needs at least one token, and a range from low to high; saw {self.least}-{self.most}. "
                r"Write [5] or [2-6]; for a bracket that is text write \[."
            )


@dataclass(frozen=True)
class Template:
    """Text and blanks, in order."""

    parts: tuple[str | Blank, ...]

    @property
    def blanks(self) -> tuple[Blank, ...]:
        return tuple(part for part in self.parts if isinstance(part, Blank))

    @property
    def choices(self) -> int:
        """The number of possible choices of lengths."""
        return prod(blank.most - blank.least + 1 for blank in self.blanks)

    def lengths(self, most: int) -> list[Lengths]:
        """Choices of lengths, shortest first: all, or `most` of them, evenly spread."""
        if most < 1:
            raise UserError(f"at least one choice of lengths must be tried; saw {most}.")
        ranges = [range(blank.least, blank.most + 1) for blank in self.blanks]
        if self.choices <= most:
            return sorted(product(*ranges), key=lambda lengths: (sum(lengths), lengths))
        # Too many to try all. Each blank steps through its range at a different pace, so that every length of a range
        # occurs and the blanks do not all grow together.
        paces = [1 + 2 * i for i in range(len(ranges))]
        tries = {
            tuple(r[(i * pace * len(r) // most) % len(r)] for r, pace in zip(ranges, paces, strict=True))
            for i in range(most)
        }
        return sorted(tries, key=lambda lengths: (sum(lengths), lengths))

    @property
    def heals(self) -> bool:
        """Whether a blank carries the space before it."""
        return any(blank.spaced for blank in self.blanks)

    def tokens(self, tokenizer: Tokenizer, lengths: Lengths) -> list[int]:
        """The template as ids, blanks of these lengths as masks."""
        return [id for id, _ in self.laid(tokenizer, lengths)]

    def spaced(self, tokenizer: Tokenizer, lengths: Lengths) -> list[bool]:
        """Whether each of these ids must begin with a space."""
        return [spaced for _, spaced in self.laid(tokenizer, lengths)]

    def laid(self, tokenizer: Tokenizer, lengths: Lengths) -> Iterator[tuple[int, bool]]:
        """The ids of the template, with masks at its blanks, and whether each must begin with a space."""
        left = iter(lengths)
        for part in self.parts:
            if isinstance(part, Blank):
                yield from ((tokenizer.mask, part.spaced and i == 0) for i in range(next(left)))
            else:
                yield from ((id, False) for id in encode_given(tokenizer, part))


def parse(text: str, *, least: int = 1, most: int = 8) -> Template:
    """Parse a template; `___` is a blank of `least` to `most` tokens."""
    parts = tuple(_join_texts(_marks(text, Blank(least, most))))
    if not any(isinstance(part, Blank) for part in parts):
        raise UserError(
            f"the template {text!r:.60} has no blank: write ___ for a blank of any length, or [5] for five tokens."
        )
    return Template(parts)


def heal_spaces(template: Template, tokenizer: Tokenizer) -> Template:
    """Move the space before a blank into the blank, if the vocabulary has tokens that begin with a space."""
    if not tokenizer.spacers:
        return template
    parts: list[str | Blank] = []
    for part in template.parts:
        before = parts[-1] if parts else ""
        # Some decoders drop a space at the start of a text, so there it stays a token.
        first = before == " " and len(parts) == 1
        if isinstance(part, Blank) and isinstance(before, str) and before.endswith(" ") and not first:
            parts[-1:] = [before[:-1]] if len(before) > 1 else []
            part = replace(part, spaced=True)
        parts.append(part)
    return Template(tuple(parts))


def _marks(text: str, free: Blank) -> Iterator[str | Blank]:
    at = 0
    for mark in MARK.finditer(text):
        yield text[at : mark.start()]
        at = mark.end()
        if mark["literal"]:
            yield mark["literal"]
        elif mark["free"]:
            yield free
        else:
            yield Blank(int(mark["least"]), int(mark["most"] or mark["least"]))
    yield text[at:]


def _join_texts(parts: Iterator[str | Blank]) -> Iterator[str | Blank]:
    """Join neighbouring texts, so that they are tokenized together, and drop empty ones."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text
