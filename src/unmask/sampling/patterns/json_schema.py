r"""A JSON schema as a regular expression: every text that matches parses and is valid.

The texts are those that `json.dumps` writes, {"a": 1, "b": [2, 3]}, with properties in the order of the schema. Not
every valid text matches: an object has no properties that the schema does not name, numbers have no exponents, and a
value that may be anything has at most DEEPEST levels. What a finite automaton or this file cannot keep is refused in
words and never ignored: recursion, `not`, `uniqueItems`, `multipleOf` of fractions, and the like.
"""

import json
import math
import re
import re._constants as ops
import re._parser as _parser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.sampling.patterns.regex import LONGEST, REPEATS, Range, code_points, complement, short
from unmask.untrusted import MEGABYTE, parse_json, read_text

DEEPEST = 2  # levels of lists and objects in a value that may be anything; within others one less
DIGITS = 15  # of a whole number; more would not survive as floating point
FRACTION = 6  # digits after the point
PLAIN_NUMBER = rf"-?(?:0|[1-9]\d{{0,{DIGITS - 1}}})(?:\.\d{{1,{FRACTION}}})?"
VALUES = 1000  # most multiples that are written out
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
PLAIN = complement([(0, 31), (34, 34), (92, 92), (0xD800, 0xDFFF)])  # characters of a string that need no escape
ESCAPES = {8: r"\b", 9: r"\t", 10: r"\n", 12: r"\f", 13: r"\r", 34: r"\"", 92: r"\\"}
CHARACTER = r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))'
# In values that may be anything, few states matter more than every way to write a value.
PLAIN_STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
SHORT_NUMBER = r"-?(?:0|[1-9]\d{0,5})(?:\.\d{1,3})?"
FORMATS = {
    "date": r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])",
    "time": r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\dZ",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": r"[a-z0-9]+(?:\.[a-z0-9]+)*@[a-z0-9]+(?:\.[a-z0-9]+)+",
    "ipv4": r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)",
}
FORMATS["date-time"] = f"{FORMATS['date']}T{FORMATS['time']}"
# Keywords that constrain and are not kept here, for each type that they concern.
REFUSED: dict[str, tuple[str, ...]] = {
    "": ("not", "if", "then", "else", "$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"),
    "array": ("contains", "minContains", "maxContains"),
    "object": (
        *("patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies"),
        *("minProperties", "maxProperties"),
    ),
}
NOTES = (
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions", "$anchor"),
)
INFERRED = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


class Impossible(UserError):
    """No value is valid."""


def schema_text(given: str) -> str:
    """A schema as JSON: the text itself, or the content of the file that it names."""
    if given.lstrip().startswith("{"):
        return given
    return read_text(Path(given), limit=MEGABYTE)


def schema_pattern(text: str) -> str:
    """The regular expression of a schema that is written as JSON."""
    schema = parse_json(text, "the JSON schema")
    if not isinstance(schema, dict):
        raise UserError(f'a JSON schema is an object, such as {{"type": "object"}}; saw {text[:40]!r}.')
    try:
        return Compiler(schema).value(schema, "#")
    except RecursionError:
        raise UserError("the JSON schema has too many levels within levels: use fewer.") from None


@dataclass
class Compiler:
    """Schemas within one document; `open` are the references that are being followed."""

    root: Mapping[str, Any]
    open: list[str] = field(default_factory=list)

    def value(self, schema: Any, where: str) -> str:
        """The expression of a schema, at a place that errors name."""
        written = self.expression(schema, where)
        if len(written) > LONGEST:
            raise UserError(f"the JSON schema becomes a pattern of more than {LONGEST:,} characters at {where}.")
        return written

    def expression(self, schema: Any, where: str) -> str:
        if isinstance(schema, bool):
            if not schema:
                raise Impossible(f"no value is valid at {where} of the JSON schema: it is false.")
            return any_value(DEEPEST - (where != "#"))
        if not isinstance(schema, Mapping):
            raise UserError(f"{where} of the JSON schema is not a schema but {schema!r:.40}.")
        check_words(schema, "", where)
        if "$ref" in schema:
            return self.follow_reference(schema, where)
        for word in ("allOf", "anyOf", "oneOf"):
            if word in schema:
                return self.combine(schema, word, where)
        if "const" in schema or "enum" in schema:
            return self.list_values(schema, where)
        kinds = types_of(schema, where)
        if not kinds:
            return any_value(DEEPEST - (where != "#"))
        return any_of(self.of_type, [(schema, kind) for kind in kinds], where)

    def of_type(self, schema: Mapping[str, Any], kind: str, where: str) -> str:
        check_words(schema, kind, where)
        if kind == "null":
            return "null"
        if kind == "boolean":
            return "(?:true|false)"
        if kind in ("integer", "number"):
            return number_pattern(schema, where, whole=kind == "integer")
        return {"string": string, "array": self.array, "object": self.object}[kind](schema, where)

    def follow_reference(self, schema: Mapping[str, Any], where: str) -> str:
        """What $ref points to, within the document."""
        target = schema["$ref"]
        if not isinstance(target, str) or not target.startswith("#"):
            raise UserError(
                f"{where} of the JSON schema refers to {target!r:.60}: only #/... within the schema is read."
            )
        if target in self.open:
            raise UserError(
                f"the JSON schema refers to itself: {target}. A pattern has no recursion: write out as many levels "
                "as you need."
            )
        place: Any = self.root
        for part in target.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            place = place[int(name)] if isinstance(place, list) and name.isdecimal() else place
            if isinstance(place, Mapping):
                if name not in place:
                    raise UserError(f"{where} of the JSON schema refers to {target}, which is not in it.")
                place = place[name]
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        self.open.append(target)
        try:
            return self.value(merged_schema(rest, place, where), target)
        finally:
            self.open.pop()

    def combine(self, schema: Mapping[str, Any], word: str, where: str) -> str:
        """allOf, anyOf or oneOf, together with what stands beside it."""
        branches = schema[word]
        if not isinstance(branches, list) or not branches:
            raise UserError(f"{where}/{word} of the JSON schema is not a list of schemas.")
        rest = {name: value for name, value in schema.items() if name != word}
        branches = [self.open_branch(branch, where) for branch in branches]
        if word == "allOf":
            for branch in branches:
                rest = merged_schema(rest, branch, where)
            return self.value(rest, where)
        if word == "oneOf":
            for one, other in combinations(branches, 2):
                if not disjoint(one, other):
                    raise UserError(
                        f"two schemas of {where}/oneOf may both be valid: write anyOf, or give them different types."
                    )
        whole = [(merged_schema(rest, branch, where), f"{where}/{word}/{i}") for i, branch in enumerate(branches)]
        return any_of(lambda branch, place, _: self.value(branch, place), whole, where)

    def open_branch(self, branch: Any, where: str) -> Any:
        """A branch, with what it refers to in its place."""
        seen: list[str] = []
        while isinstance(branch, Mapping) and set(branch) - set(NOTES) == {"$ref"} and branch["$ref"] not in seen:
            target = str(branch["$ref"])
            seen.append(target)
            if target in self.open:
                break
            place: Any = self.root
            for part in target.removeprefix("#").split("/")[1:]:
                place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
            if not isinstance(place, Mapping):
                break
            branch = place
        return branch

    def list_values(self, schema: Mapping[str, Any], where: str) -> str:
        """const and enum: the values themselves, of the right type."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list):
            raise UserError(f"{where}/enum of the JSON schema is not a list but {values!r:.40}.")
        if "const" in schema and isinstance(schema.get("enum"), list):
            values = [value for value in values if any(same(value, one) for one in schema["enum"])]
        beside = [word for words in INFERRED.values() for word in words if word in schema]
        if beside:
            raise unsupported_word(f"{beside[0]} beside enum or const", where)
        kinds = types_of(schema, where) or TYPES
        values = [value for value in values if any(is_of(value, kind) for kind in kinds)]
        if not values:
            raise Impossible(f"no value is valid at {where} of the JSON schema: none of enum is of the type.")
        return "(?:" + "|".join(literal(value) for value in values) + ")"

    def array(self, schema: Mapping[str, Any], where: str) -> str:
        low, high = size_bounds(schema, "Items", where)
        if schema.get("uniqueItems") is True and (high is None or high > 1):
            raise unsupported_word("uniqueItems", where)
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # as it was written before 2020
            first, rest = rest, schema.get("additionalItems", True)
        parts: list[str] = []
        for number, one in enumerate(first[: len(first) if high is None else high]):
            try:
                parts.append(self.value(one, f"{where}/prefixItems/{number}"))
            except Impossible:
                high = number
        try:
            more = self.value(rest, f"{where}/items") if high is None or high > len(parts) else ""
        except Impossible:
            more, high = "", len(parts)
        if high is not None and low > high:
            raise Impossible(
                f"no list is valid at {where} of the JSON schema: {low} items or more, and {high} or less."
            )
        return rf"\[{items(parts, more, low, high)}\]"

    def object(self, schema: Mapping[str, Any], where: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise UserError(f"{where} of the JSON schema: properties must be an object and required a list.")
        more = schema.get("additionalProperties", True)
        wanted = {**properties, **{str(name): more for name in required if name not in properties}}
        if not wanted:
            try:
                return mapping(self.value(more, f"{where}/additionalProperties"))
            except Impossible:
                return r"\{\}"
        members: list[tuple[str, bool]] = []
        for name, one in wanted.items():
            try:
                members.append(
                    (f"{literal(name)}: {self.value(one, f'{where}/properties/{name}')}", name in required)
                )
            except Impossible:
                if name in required:
                    raise
        return rf"\{{{fields(members)}\}}"


def check_words(schema: Mapping[str, Any], kind: str, where: str) -> None:
    for word in REFUSED.get(kind, ()):
        if word in schema:
            raise unsupported_word(word, where)


def unsupported_word(word: str, where: str) -> UserError:
    return UserError(
        f"{word} at {where} of the JSON schema cannot be kept by a pattern: leave it out, and check answers yourself."
    )


def any_of(expression: Any, choices: Sequence[tuple[Any, str]], where: str) -> str:
    """Any of several expressions; those that no value matches are left out."""
    parts: list[str] = []
    refusal: Impossible | None = None
    for one, other in choices:
        try:
            parts.append(expression(one, other, where))
        except Impossible as error:
            refusal = error
    if not parts:
        raise refusal or Impossible(f"no value is valid at {where} of the JSON schema.")
    return parts[0] if len(parts) == 1 else "(?:" + "|".join(dict.fromkeys(parts)) + ")"


def types_of(schema: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The types of a schema, by its words if it names none; empty: any value."""
    kinds = schema.get("type")
    if kinds is None:
        return tuple(kind for kind, words in INFERRED.items() if any(word in schema for word in words))[:1]
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not all(kind in TYPES for kind in kinds):
        raise UserError(f"{where} of the JSON schema has the type {kinds!r:.60}. Known: {', '.join(TYPES)}.")
    if not kinds:
        raise Impossible(f"no value is valid at {where} of the JSON schema: its list of types is empty.")
    return tuple(kind for kind in dict.fromkeys(kinds) if not (kind == "integer" and "number" in kinds))


def merged_schema(one: Any, other: Any, where: str) -> Any:
    """A schema that keeps both, where that is certain."""
    if one is False or other is False:
        return False
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        known = [schema for schema in (one, other) if schema is not True]
        if any(not isinstance(schema, Mapping) for schema in known):
            raise UserError(f"{where} of the JSON schema has {known[-1]!r:.40} where a schema belongs.")
        return known[0] if known else True
    one, result = ({name: value for name, value in s.items() if name not in NOTES} for s in (one, other))
    check_apart(one, result, where)
    check_apart(result, one, where)
    for name, value in one.items():
        result[name] = merged_word(name, value, result[name], where) if name in result else value
    return result


def check_apart(one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Refuse two schemas if a word of one is about what its own neighbour does not name, and the other names more."""
    for rest, named in (("additionalProperties", "properties"), ("items", "prefixItems")):
        if rest in one and named in other and not same(other[named], one.get(named)):
            raise unsupported_word(f"{rest} of two schemas together", where)


def merged_word(name: str, one: Any, other: Any, where: str) -> Any:
    """The value of a word that keeps both values."""
    if same(one, other):
        return one
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    if numbers and name in ("minimum", "exclusiveMinimum", "minLength", "minItems"):
        return max(one, other)
    if numbers and name in ("maximum", "exclusiveMaximum", "maxLength", "maxItems"):
        return min(one, other)
    lists = isinstance(one, list) and isinstance(other, list)
    if name == "required" and lists:
        return [*one, *(value for value in other if value not in one)]
    if name == "enum" and lists:
        return [value for value in one if any(same(value, x) for x in other)]
    if name == "type":
        kinds, others = ([value] if isinstance(value, str) else list(value) for value in (one, other))
        shared = [kind for kind in kinds if kind in others or (kind == "integer" and "number" in others)]
        return shared + [kind for kind in others if kind == "integer" and "number" in kinds and kind not in shared]
    if name == "properties" and isinstance(one, Mapping) and isinstance(other, Mapping) and not {*one} & {*other}:
        return {**one, **other}
    raise unsupported_word(f"{name} of two schemas together", where)


def disjoint(one: Any, other: Any) -> bool:
    """Whether certainly no value is valid for both of two schemas."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one is False or other is False
    these, those = ([s["const"]] if "const" in s else s.get("enum") for s in (one, other))
    if isinstance(these, list) and isinstance(those, list):
        return not any(same(a, b) for a in these for b in those)
    kinds = []
    for schema in (one, other):
        named = schema.get("type", list(TYPES))
        named = [named] if isinstance(named, str) else named
        kinds.append({*named, *(["integer"] if "number" in named else [])} if isinstance(named, list) else set(TYPES))
    if not kinds[0] & kinds[1]:
        return True
    shared = (
        {*one.get("required", [])} & {*other.get("required", [])} if kinds[0] == kinds[1] == {"object"} else set()
    )
    parts = (one.get("properties", {}), other.get("properties", {}))
    return any(name in parts[0] and name in parts[1] and disjoint(parts[0][name], parts[1][name]) for name in shared)


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    types: dict[str, Any] = {"null": type(None), "number": (int, float), "string": str, "array": list, "object": dict}
    return kind in types and isinstance(value, types[kind])


def literal(value: Any) -> str:
    return re.escape(json.dumps(value, ensure_ascii=False))


def any_value(depth: int) -> str:
    """Any value with so many levels of lists and objects."""
    simple = rf"null|true|false|{SHORT_NUMBER}|{PLAIN_STRING}"
    if depth < 1:
        return f"(?:{simple})"
    inner = any_value(depth - 1)
    return rf"(?:{simple}|\[{items([], inner, 0, None)}\]|{mapping(inner)})"


def mapping(value: str) -> str:
    """An object whose properties have any names."""
    one = f"{PLAIN_STRING}: {value}"
    return rf"\{{(?:{one}(?:, {one})*)?\}}"


def fields(members: Sequence[tuple[str, bool]]) -> str:
    """The members of an object in their order, with commas; those that are not required may be absent."""
    choices = []
    for first, (text, required) in enumerate(members):
        rest = "".join(f", {one}" if must else f"(?:, {one})?" for one, must in members[first + 1 :])
        choices.append(text + rest)
        if sum(map(len, choices)) > LONGEST:
            raise UserError(f"an object of the JSON schema has too many optional properties: {len(members)}.")
        if required:
            return f"(?:{'|'.join(choices)})"
    return f"(?:{'|'.join([*choices, ''])})"


def items(first: Sequence[str], more: str, low: int, high: int | None) -> str:
    """The items of a list: the first have expressions of their own."""
    count = len(first)
    if not count:
        if high == 0 or not more:
            return ""
        most = "" if high is None else str(high - 1)
        whole = f"{more}(?:, {more}){{{max(0, low - 1)},{most}}}"
        return whole if low else f"(?:{whole})?"
    tail = ""
    if more:
        tail = f"(?:, {more}){{{max(0, low - count)},{'' if high is None else high - count}}}"
    for number in reversed(range(count)):
        part = f"{', ' if number else ''}{first[number]}{tail}"
        tail = part if number < low else f"(?:{part})?"
    return tail


def size_bounds(schema: Mapping[str, Any], what: str, where: str) -> tuple[int, int | None]:
    """minItems and maxItems, or minLength and maxLength."""
    low, high = schema.get(f"min{what}", 0), schema.get(f"max{what}")
    for value in (low, high):
        if value is not None and (isinstance(value, bool) or not is_of(value, "integer") or value < 0):
            raise UserError(
                f"min{what} and max{what} at {where} of the JSON schema are whole numbers; saw {value!r:.40}."
            )
    low, high = int(low), None if high is None else int(high)
    if high is not None and low > high:
        raise Impossible(f"no value is valid at {where} of the JSON schema: min{what} is greater than max{what}.")
    return low, high


def string(schema: Mapping[str, Any], where: str) -> str:
    low, high = size_bounds(schema, "Length", where)
    sized = low > 0 or high is not None
    pattern, form = schema.get("pattern"), schema.get("format")
    if sum([sized, pattern is not None, form is not None]) > 1:
        raise unsupported_word("pattern, format and length of one string together", where)
    if form is not None:
        if form not in FORMATS:
            raise unsupported_word(f"the format {form!r:.40} (known: {', '.join(FORMATS)})", where)
        return f'"{FORMATS[form]}"'
    if pattern is not None:
        return f'"{search_pattern(pattern, where)}"'
    return f'"{CHARACTER}{{{low},{"" if high is None else high}}}"'


def search_pattern(pattern: Any, where: str) -> str:
    """The inside of a JSON string in which a pattern is found somewhere, as the words of a schema mean it."""
    if not isinstance(pattern, str):
        raise UserError(f"the pattern at {where} of the JSON schema is not text but {pattern!r:.40}.")
    try:
        tree = list(_parser.parse(pattern, re.ASCII))
    except (re.error, OverflowError, ValueError) as error:
        raise UserError(
            f"the pattern {short(pattern)!r} at {where} of the JSON schema is not valid: {error}."
        ) from None
    begins = bool(tree) and tree[0][0] is ops.AT and tree[0][1] in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING)
    ends = bool(tree) and tree[-1][0] is ops.AT and tree[-1][1] in (ops.AT_END, ops.AT_END_STRING)
    inner = tree[begins : len(tree) - ends]
    return ("" if begins else f"{CHARACTER}*") + "".join(escapes(inner, where)) + ("" if ends else f"{CHARACTER}*")


def escapes(tree: Any, where: str) -> Iterator[str]:
    """The parts of a pattern, each character as JSON writes it."""
    for op, value in tree:
        if op is ops.SUBPATTERN:
            yield f"(?:{''.join(escapes(value[3], where))})"
        elif op is ops.BRANCH:
            yield "(?:" + "|".join("".join(escapes(one, where)) for one in value[1]) + ")"
        elif op in REPEATS:
            least, most, inner = value
            yield f"(?:{''.join(escapes(inner, where))}){{{least},{'' if most is ops.MAXREPEAT else most}}}"
        elif op in (ops.ANY, ops.IN, ops.LITERAL, ops.NOT_LITERAL):
            yield written_character(op, value, where)
        else:
            raise unsupported_word(f"{str(op).lower()} within a pattern", where)


def written_character(op: Any, value: Any, where: str) -> str:
    """One character of a pattern; classes such as \\D have ASCII alone, on which all kinds of patterns agree."""
    ranges = code_points(op, value, 0)
    if op is ops.ANY:
        ranges = overlap(ranges, complement([(10, 10), (13, 13), (0x2028, 0x2029)]))
    elif op is ops.IN and any(kind is ops.CATEGORY for kind, _ in value):
        ranges = overlap(ranges, [(0, 127)])
    plain = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in overlap(ranges, PLAIN))
    other = [re.escape(text) for code, text in ESCAPES.items() if any(low <= code <= high for low, high in ranges)]
    choices = [*([f"[{plain}]"] if plain else []), *other]
    if not choices:
        raise unsupported_word("a character within a pattern", where)
    return "(?:" + "|".join(choices) + ")"


def overlap(one: list[Range], other: list[Range]) -> list[Range]:
    return complement(complement(one) + complement(other))


def number_pattern(schema: Mapping[str, Any], where: str, *, whole: bool) -> str:
    """A number; with bounds, whole ones and those with digits after the point whose neighbours are within them."""
    limits: dict[str, Any] = {}
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        limits[word] = schema.get(word)
        if limits[word] is not None and (isinstance(limits[word], bool) or not isinstance(limits[word], int | float)):
            raise UserError(f"{word} at {where} of the JSON schema is not a number but {limits[word]!r:.40}.")
    lows = [math.ceil(limits["minimum"])] if limits["minimum"] is not None else []
    lows += [math.floor(limits["exclusiveMinimum"]) + 1] if limits["exclusiveMinimum"] is not None else []
    highs = [math.floor(limits["maximum"])] if limits["maximum"] is not None else []
    highs += [math.ceil(limits["exclusiveMaximum"]) - 1] if limits["exclusiveMaximum"] is not None else []
    low, high = max(lows, default=None), min(highs, default=None)
    step = limits["multipleOf"]
    if step is not None and step != 1:
        return multiples(step, low, high, where)
    if low is None and high is None:
        return rf"-?(?:0|[1-9]\d{{0,{DIGITS - 1}}})" if whole or step == 1 else PLAIN_NUMBER
    low = min(-(10**DIGITS) + 1, (high or 0) - 1) if low is None else low
    high = max(10**DIGITS - 1, low + 1) if high is None else high
    if low > high:
        raise Impossible(f"no whole number is valid at {where} of the JSON schema: from {low} to {high}.")
    choices = [whole_between(low, high)]
    if not whole and step is None and max(abs(low), abs(high)) < 10 ** (DIGITS - FRACTION):
        if max(low, 0) < high:
            choices.append(rf"{whole_between(max(low, 0), high - 1)}\.\d{{1,{FRACTION}}}")
        if low < min(high, 0):
            choices.append(rf"-{whole_between(max(-high, 0), -low - 1)}\.\d{{1,{FRACTION}}}")
    return f"(?:{'|'.join(choices)})"


def multiples(step: float, low: int | None, high: int | None, where: str) -> str:
    """The multiples of a whole number between two others."""
    if not is_of(step, "integer") or step <= 0 or low is None or high is None or (high - low) // step > VALUES:
        raise unsupported_word("multipleOf without close bounds, or of a fraction,", where)
    values = range(-(-low // int(step)) * int(step), high + 1, int(step))
    if not values:
        raise Impossible(f"no multiple of {step} is valid at {where} of the JSON schema.")
    return "(?:" + "|".join(map(str, values)) + ")"


def whole_between(low: int, high: int) -> str:
    """The whole numbers from low to high."""
    choices = []
    if low < 0:
        choices.append(f"-{whole_between(max(1, -high), -low)}")
    if high >= 0:
        start = max(low, 0)
        for size in range(len(str(start)), len(str(high)) + 1):
            first, last = max(start, 10 ** (size - 1) if size > 1 else 0), min(high, 10**size - 1)
            choices.append(same_size(str(first), str(last)))
    return f"(?:{'|'.join(choices)})"


def same_size(low: str, high: str) -> str:
    """Digits between two numbers of one size."""
    size = len(low)
    if low == high:
        return low
    if low == "0" * size and high == "9" * size:
        return rf"\d{{{size}}}"
    if low[0] == high[0]:
        return low[0] + same_size(low[1:], high[1:])
    choices = [low[0] + same_size(low[1:], "9" * (size - 1))]
    if int(high[0]) - int(low[0]) > 1:
        choices.append(rf"[{int(low[0]) + 1}-{int(high[0]) - 1}]\d{{{size - 1}}}")
    choices.append(high[0] + same_size("0" * (size - 1), high[1:]))
    return f"(?:{'|'.join(choices)})"
