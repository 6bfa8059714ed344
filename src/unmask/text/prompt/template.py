r"""Template: a text with blanks, "The ___ sat on the [5]."

    [5]      a blank of five tokens
    [2-6]    a blank of two to six tokens
    ___      a blank whose length is chosen (three underscores or more)
    \[ \_    a bracket or an underscore that belongs to the text; \\ is a backslash

Any other bracket, "[sic]", is text. What the template gives never changes. Its parts become tokens each by itself. In
vocabularies whose words begin with their space, a space before a blank would be a token of its own, which such models
have hardly seen: `healed` leaves it out and lets the blank begin with it.
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
    spaced: bool = False  # its first token brings the space before it

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UserError(
                f"a blank needs at least one token, and its lengths must grow; saw {self.least}-{self.most}. "
                r"Write [5] or [2-6]; for a bracket that is text write \[."
            )


@dataclass(frozen=True)
class Template:
    """Text and blanks, in the order they stand."""

    parts: tuple[str | Blank, ...]

    @property
    def blanks(self) -> tuple[Blank, ...]:
        return tuple(part for part in self.parts if isinstance(part, Blank))

    @property
    def choices(self) -> int:
        """In how many ways the lengths can be chosen."""
        return prod(blank.most - blank.least + 1 for blank in self.blanks)

    def lengths(self, most: int) -> list[Lengths]:
        """The ways to choose the lengths, shortest first: all, or `most` of them, evenly spread."""
        if most < 1:
            raise UserError(f"at least one choice of lengths must be tried; saw {most}.")
        ranges = [range(blank.least, blank.most + 1) for blank in self.blanks]
        if self.choices <= most:
            return sorted(product(*ranges), key=lambda lengths: (sum(lengths), lengths))
        # Too many to try. Blank by blank, the i-th of `most` tries walks through the range at a pace of its own, so
        # that every length of a range has its turn and the blanks do not all grow together.
        paces = [1 + 2 * i for i in range(len(ranges))]
        tries = {
            tuple(r[(i * pace * len(r) // most) % len(r)] for r, pace in zip(ranges, paces, strict=True))
            for i in range(most)
        }
        return sorted(tries, key=lambda lengths: (sum(lengths), lengths))

    @property
    def heals(self) -> bool:
        """Whether a blank brings the space before it."""
        return any(blank.spaced for blank in self.blanks)

    def tokens(self, tokenizer: Tokenizer, lengths: Lengths) -> list[int]:
        """The template as ids, blanks of these lengths as masks."""
        return [id for id, _ in self.laid(tokenizer, lengths)]

    def spaced(self, tokenizer: Tokenizer, lengths: Lengths) -> list[bool]:
        """Of these ids, which must begin with a space."""
        return [spaced for _, spaced in self.laid(tokenizer, lengths)]

    def laid(self, tokenizer: Tokenizer, lengths: Lengths) -> Iterator[tuple[int, bool]]:
        """The template as ids, masks at its blanks, each with whether it must begin with a space."""
        left = iter(lengths)
        for part in self.parts:
            if isinstance(part, Blank):
                yield from ((tokenizer.mask, part.spaced and i == 0) for i in range(next(left)))
            else:
                yield from ((id, False) for id in encode_given(tokenizer, part))


def parse(text: str, *, least: int = 1, most: int = 8) -> Template:
    """Read a template; a blank of no given length has `least` to `most` tokens."""
    parts = tuple(_joined(_marks(text, Blank(least, most))))
    if not any(isinstance(part, Blank) for part in parts):
        raise UserError(
            f"the template {_short(text)!r} has no blank: write ___ where the length is to be chosen, "
            "or [5] for five tokens."
        )
    return Template(parts)


def healed(template: Template, tokenizer: Tokenizer) -> Template:
    """The same text, the space before a blank made part of it, where the vocabulary has words with their space."""
    if not tokenizer.spacers:
        return template
    parts: list[str | Blank] = []
    for part in template.parts:
        before = parts[-1] if parts else ""
        # Some decoders drop a space at the start of a text: there it stays a token.
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


def _joined(parts: Iterator[str | Blank]) -> Iterator[str | Blank]:
    """Neighbouring texts as one, so that they are tokenised together; empty ones left out."""
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


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
