r"""A form: text with typed holes, '{"name": <string>, "age": <int>}', as a pattern.

<string>   a JSON string with its quotes      <word>   letters, digits and _
<int>      a whole number                     <line>   any text without a line break
<number>   a JSON number                      <text>   any text
<bool>     true or false                      <a|b|c>  one of these, literally
<list int> a JSON list of the named type      \<       a literal angle bracket; \\ is a backslash
"""

import re

from unmask.errors import UserError, unknown
from unmask.sampling.patterns.regex import LONGEST

HOLES = {
    "string": r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"',
    "int": r"-?(?:0|[1-9]\d*)",
    "number": r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?",
    "bool": "(?:true|false)",
    "word": r"\w+",
    "line": r"[^\n]+",
    "text": r"(?s:.+)",
}
DEEPEST = 8  # lists within lists; each level doubles the pattern
MARK = re.compile(r"\\(?P<literal>[<\\])|<(?P<hole>[^<>]*)>|(?P<open><)")


def pattern_of(form: str) -> str:
    """The regular expression of a form."""
    parts, at, length = [], 0, 0
    for mark in MARK.finditer(form):
        parts.append(re.escape(form[at : mark.start()]))
        at = mark.end()
        if mark["open"]:
            raise UserError(
                rf"the form has a < without > at column {mark.start() + 1}; for the sign itself write \<."
            )
        parts.append(re.escape(mark["literal"]) if mark["literal"] else hole(mark["hole"]))
        length += len(parts[-2]) + len(parts[-1])
        if length > LONGEST:
            raise UserError(
                f"the form becomes a pattern of more than {LONGEST:,} characters by column {at}: use fewer holes, or "
                "fewer lists within lists."
            )
    return "".join([*parts, re.escape(form[at:])])


def hole(name: str) -> str:
    if "|" in name:
        return "(?:" + "|".join(re.escape(choice) for choice in name.split("|")) + ")"
    if name.count("list ") > DEEPEST:
        raise UserError(f"lists within lists may be {DEEPEST} deep in a form; saw {name.count('list ')}.")
    if name.startswith("list "):
        one = hole(name.removeprefix("list "))
        return rf"\[(?:{one}(?:, {one})*)?\]"
    if name not in HOLES:
        raise unknown("hole of a form", name, [*HOLES, "list int", "a|b"])
    return HOLES[name]
