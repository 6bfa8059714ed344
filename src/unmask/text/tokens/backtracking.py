"""Regular expressions of a tokenizer.json: refuse those that can take exponential time.

The `tokenizers` library searches with backtracking (Oniguruma). A pattern is accepted if it is in a form without
exponential backtracking: what is repeated contains no choice (no alternation, no variable number of repeats), and
there is neither a back-reference nor a call of a group. The patterns of the published tokenizers have this form.
At most 4 unbounded repeats may follow each other, so that the time grows at most as a power of the text's length.
"""

import re
from dataclasses import dataclass

from unmask.errors import UserError

LENGTH = 5_000  # characters of a pattern
COUNT = 1_000  # the largest number in {n,m}, and the product of nested ones
UNBOUNDED = 4  # unbounded repeats after each other

OPENING = re.compile(r"\((?:\?(?:[im]*(?:-[im]+)?:|=|!|<=|<!|>))?(?!\?)")
FLAGS = re.compile(r"\(\?[im-]+\)")
ESCAPE = re.compile(r"\\(?:[pPxuo]\{[^{}]*\}|[^1-9kgcCM])", re.DOTALL)
REPEAT = re.compile(r"[*+?]|\{(\d+)(,?)(\d*)\}|\{,(\d+)\}")


@dataclass
class Item:
    """A part of a pattern: an atom, or a group while it is read."""

    varies: bool = False  # it contains a choice
    count: int = 1  # copies of one atom that it may stand for
    path: int = 0  # unbounded repeats of the current alternative
    longest: int = 0  # the same of the alternatives before it
    last: "Item | None" = None  # the item that a repeat would apply to


def check_regex(pattern: str) -> None:
    """Refuse a pattern that is not in the safe form."""
    if len(pattern) > LENGTH:
        raise refusal(pattern, f"it is longer than {LENGTH} characters")
    stack, at = [Item()], 0
    while at < len(pattern):
        group, letter = stack[-1], pattern[at]
        if letter == "|":
            group.varies, group.longest, group.path, group.last = True, max(group.longest, group.path), 0, None
            at += 1
        elif letter == "(":
            at = open_group(pattern, at, stack)
        elif letter == ")":
            if len(stack) == 1:
                raise refusal(pattern, "a bracket is not opened")
            stack.pop()
            group.path = max(group.longest, group.path)
            add(stack[-1], group, pattern)
            at += 1
        elif (repeat := REPEAT.match(pattern, at)) and group.last is not None:
            at = apply_repeat(pattern, repeat, group)
        else:
            at = atom_end(pattern, at)
            add(group, Item(), pattern)
    if len(stack) > 1:
        raise refusal(pattern, "a bracket is not closed")


def add(group: Item, item: Item, pattern: str) -> None:
    group.last = item
    group.varies |= item.varies
    group.count = max(group.count, item.count)
    group.path += item.path
    if group.path > UNBOUNDED:
        raise refusal(pattern, f"more than {UNBOUNDED} unbounded repeats follow each other")


def open_group(pattern: str, at: int, stack: list[Item]) -> int:
    if match := FLAGS.match(pattern, at):
        return match.end()
    match = OPENING.match(pattern, at)
    if match is None:
        raise refusal(pattern, f"it has a group of an unusual kind, {pattern[at : at + 4]!r}")
    stack.append(Item())
    return match.end()


def apply_repeat(pattern: str, match: re.Match[str], group: Item) -> int:
    """Apply a repeat to the last item of a group; returns where the pattern goes on."""
    item, at = group.last, match.end()
    assert item is not None
    least, most = bounds(match)
    if most is None or most > 1:
        if item.varies:
            raise refusal(pattern, f"it repeats a part with a choice inside ({pattern[:at][-40:]!r})")
        if (most or 1) * item.count > COUNT:
            raise refusal(pattern, f"it counts beyond {COUNT}")
    if least != most:
        group.varies = True
    group.count = max(group.count, (most or 1) * item.count)
    if most is None:
        add(group, Item(path=1), pattern)
    group.last = None
    if pattern[at : at + 1] == "?" or (pattern[at : at + 1] == "+" and match[0] in "*+?"):  # lazy, possessive
        at += 1
    if REPEAT.match(pattern, at):
        raise refusal(pattern, "it repeats a repeat")
    return at


def bounds(match: re.Match[str]) -> tuple[int, int | None]:
    """The least and the largest number of a repeat; None: unbounded."""
    if match[0] in ("*", "+", "?"):
        return (1 if match[0] == "+" else 0), (1 if match[0] == "?" else None)
    numbers = [text for text in match.groups() if text and text != ","]
    if any(len(text) > 6 for text in numbers):
        return 0, 10**6
    if match[4]:
        return 0, int(match[4])
    least = int(match[1])
    return least, (least if not match[2] else int(match[3]) if match[3] else None)


def atom_end(pattern: str, at: int) -> int:
    """Where the character, escape or class ends that begins here."""
    if pattern[at] == "\\":
        match = ESCAPE.match(pattern, at)
        if match is None:
            raise refusal(pattern, "it has a back-reference, a call of a group or an unfinished escape")
        return match.end()
    if pattern[at] != "[":
        return at + 1
    depth = 0
    while at < len(pattern):
        if pattern.startswith(("[]", "[^]"), at):
            raise refusal(pattern, "a class begins with ']'")
        depth += {"[": 1, "]": -1}.get(pattern[at], 0)
        at += 2 if pattern[at] == "\\" else 1
        if depth == 0:
            return at
    raise refusal(pattern, "a class is not closed")


def refusal(pattern: str, why: str) -> UserError:
    return UserError(
        f"its regular expression {pattern[:60]!r} may take exponential time, so it is not used: {why}. "
        "Write it without nested repeats and without alternatives inside a repeat."
    )
