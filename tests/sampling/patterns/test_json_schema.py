"""A JSON schema as a pattern: every text that matches parses and is valid, for random schemas too."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unmask.errors import UserError
from unmask.sampling.patterns.json_schema import schema_pattern
from unmask.sampling.patterns.regex import machine_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mail": {"type": ["string", "null"], "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["a", 'b"c', "é"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "object"},
    {},
    {"type": "integer"},
    {"type": "integer", "minimum": -12, "maximum": 305},
    {"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 11},
    {"type": "integer", "minimum": 10**16},
    {"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 100},
    {"type": "number", "minimum": -1.5, "maximum": 2.25},
    {"type": ["number", "null"], "exclusiveMinimum": -1, "exclusiveMaximum": 1},
    {"type": "string", "pattern": "^[a-c]+\\d{2}$"},
    {"type": "string", "pattern": 'x"|\\\\.|\\n'},
    {"type": "string", "pattern": "^(?:\\D|[^a-z])$"},
    {"type": "string", "pattern": "^\\S+$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": {"type": "null"},
        "minItems": 1,
    },
    {"type": "array", "prefixItems": [{"const": 1}, False], "minItems": 1},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
    {"type": "array", "items": False},
    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}, False]},
    {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]},
            {
                "type": "object",
                "properties": {"kind": {"const": "b"}, "n": {"type": "integer"}},
                "required": ["kind"],
            },
        ]
    },
    {"allOf": [{"type": ["integer", "string"]}, {"type": "number", "minimum": 3}], "maximum": 20},
    {"enum": [1, "two", [3, {"four": 5.5}], None, True]},
    {"type": "string", "enum": ["a", 1, "b"]},
    {"const": {"b": [], "a": "\n"}},
    {"properties": {"a": {"type": "integer"}, "b": False, "c": {"type": "null"}}},
    {"type": "object", "required": ["x", "y"], "properties": {"y": {"type": "integer"}, "z": {"type": "integer"}}},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer", "title": "n"}}},
    {"$ref": "#/$defs/n", "maximum": 9, "$defs": {"n": {"type": "integer", "minimum": 0}}},
    {"title": "x", "description": "y", "default": 3, "type": "boolean"},
    {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(12)}},
]


def texts(pattern, *, count, seed=0, longest=60):
    """Random texts that match."""
    machine, dice = machine_of(pattern), random.Random(seed)
    dead = len(machine.table) - 1
    left = np.where(machine.accepts, 0, 10**9)
    while True:  # steps to the nearest end
        new = np.minimum(left, left[machine.table].min(1) + 1)
        if (new == left).all():
            break
        left = new
    for _ in range(count):
        state, found = 0, bytearray()
        while not (
            machine.accepts[state]
            and (dice.random() < 0.3 or len(found) > longest or left[machine.table[state]].min() >= 10**9)
        ):
            moves = machine.table[state]
            possible = np.flatnonzero((moves != dead) & (left[moves] < 10**9))
            if len(found) > longest:
                possible = possible[left[moves[possible]] == left[moves[possible]].min()]
            byte = dice.choice(possible.tolist())
            found.append(byte)
            state = int(moves[byte])
        yield found.decode()


def check(schema, *, count=30, seed=0):
    pattern, validator = schema_pattern(json.dumps(schema)), jsonschema.Draft202012Validator
    for text in texts(pattern, count=count, seed=seed):
        value = json.loads(text)
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(value)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_every_match_parses_and_is_valid(schema):
    check(schema)


BOUND, SMALL = st.integers(-120, 120), st.integers(0, 4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def words_of(kind: str, **words: Any) -> st.SearchStrategy[Any]:
    """Schemas of a type with some of its words."""
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=words)


LEAVES = st.one_of(
    st.booleans(),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}, {}]),
    words_of("integer", minimum=BOUND, maximum=BOUND, exclusiveMinimum=BOUND, multipleOf=st.sampled_from([1, 2, 5])),
    words_of("number", minimum=st.floats(-5, 5), exclusiveMaximum=BOUND, maximum=BOUND),
    words_of("string", minLength=SMALL, maxLength=SMALL),
    words_of("string", pattern=st.sampled_from(["^a", "b$", "[0-9]{2}", "^(x|yz)*$", ".", r"\w\W", '"', "[^a-y]$"])),
    st.fixed_dictionaries({"enum": st.lists(VALUES, max_size=3)}, optional={"type": st.just("string")}),
    st.fixed_dictionaries({"const": VALUES}),
)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas made of others."""
    several, names = st.lists(inner, min_size=1, max_size=3), st.sampled_from(["a", "b", 'x "y'])
    return st.one_of(
        words_of(
            "array", items=inner, prefixItems=several, minItems=SMALL, maxItems=SMALL, uniqueItems=st.booleans()
        ),
        words_of(
            "object",
            properties=st.dictionaries(names, inner, max_size=3),
            required=st.lists(names, max_size=2, unique=True),
            additionalProperties=inner,
        ),
        *[
            st.fixed_dictionaries({word: several}, optional={"type": st.just("integer")})
            for word in ("anyOf", "allOf")
        ],
        st.fixed_dictionaries({"oneOf": several}),
    )


PEOPLE = machine_of(schema_pattern(json.dumps(PERSON)))
COUNTS = {"compiled": 0, "refused": 0}


@settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(schema=st.recursive(LEAVES, larger, max_leaves=6), seed=st.integers(0, 99))
def hundreds_of_schemas(schema, seed):
    if not isinstance(schema, dict):
        return
    try:
        check(schema, count=3, seed=seed)
        COUNTS["compiled"] += 1
    except UserError:
        COUNTS["refused"] += 1


@pytest.mark.slow
def test_hundreds_of_schemas_are_kept_or_refused_in_words():
    COUNTS.update(compiled=0, refused=0)
    hundreds_of_schemas()
    assert COUNTS["compiled"] > 150, COUNTS
    assert COUNTS["refused"] > 20, COUNTS


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    value=st.fixed_dictionaries(
        {"name": st.text(min_size=1, max_size=8), "age": st.integers(0, 150)},
        optional={"mail": st.none(), "tags": st.lists(st.sampled_from(["a", 'b"c', "é"]), max_size=3)},
    )
)
def test_what_is_valid_and_written_as_usual_matches(value):
    ordered = {name: value[name] for name in PERSON["properties"] if name in value}
    text = json.dumps(ordered, ensure_ascii=False)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return
    assert PEOPLE.matches(encoded)
    assert not PEOPLE.matches(text.replace('"age"', '"agee"').encode())


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}},
            "refers to itself",
        ),
        ({"$ref": "#"}, "refers to itself"),
        ({"$ref": "#/nowhere"}, "which is not in it"),
        ({"$ref": "http://example.com/x.json"}, "only #/"),
        ({"not": {"type": "null"}}, "not at #"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "number", "multipleOf": 0.01}, "multipleOf"),
        ({"type": "string", "pattern": "(?=a)b"}, "assert"),
        ({"type": "string", "pattern": "("}, "not valid"),
        ({"type": "string", "pattern": "a", "minLength": 3}, "together"),
        ({"type": "string", "format": "iri"}, "'iri'"),
        ({"type": "text"}, "Known: null"),
        ({"type": "integer", "minimum": "3"}, "'3'"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no whole number"),
        ({"type": "array", "minItems": -1}, "-1"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "anyOf"),
        ({"enum": []}, "no value is valid"),
        ({"allOf": [False]}, "no value is valid"),
        ({"type": "object", "properties": 3}, "properties"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "no value is valid"),
        ({"type": "object", "patternProperties": {"a": {}}}, "patternProperties"),
        ({"type": "string", "minLength": 30_000}, "states"),
        ({"type": "array", "items": {"type": "object"}, "minItems": 400}, "characters|states"),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_what_a_pattern_cannot_keep_is_refused_in_words(schema, words):
    with pytest.raises(UserError, match=words):
        machine_of(schema_pattern(json.dumps(schema)))


@pytest.mark.parametrize("text", ["3", "true", '["a"]', "{", "{'a': 1}", '{"minimum": NaN}'])
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(UserError):
        schema_pattern(text)
