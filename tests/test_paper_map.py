"""docs/why/paper.md leads from the paper to the code: every name on it exists, and no system is missing."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/why/paper.md").read_text(encoding="utf-8")
FUNCTIONS = sorted(set(re.findall(r"`(unmask[\w.]*:[\w.]+)`", PAGE)))
IN_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py):(\w+)`", PAGE)))
WORDS = {  # a word of the field, and the files that implement what it means
    "NELBO": ["diffusion/mdlm.py", "diffusion/schedule.py"],
    "SUBS": ["diffusion/mdlm.py", "diffusion/rows.py"],
    "carry-over": ["diffusion/mdlm.py"],
    "zero-masking": ["diffusion/rows.py"],
    "ancestral sampling": ["sampling/policies/planned.py"],
    "caching": ["sampling/policies/planned.py"],
    "semi-autoregressive": ["sampling/masked.py"],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_on_the_page_exists(name):
    module, _, path = name.partition(":")
    thing = import_module(module)
    for part in path.split("."):
        thing = getattr(thing, part)


@pytest.mark.parametrize(("path", "function"), IN_TESTS)
def test_every_function_of_the_tests_on_the_page_exists(path, function):
    assert re.search(rf"^def {function}\(", (ROOT / path).read_text(encoding="utf-8"), re.M)


def test_the_page_names_enough_to_be_a_map():
    assert len(FUNCTIONS) >= 40
    assert {f"eq. {number}" for number in (1, 3, 5, 6, 8, 10, 11)} <= set(re.findall(r"eq\. \d+", PAGE))


def test_every_table_of_the_paper_and_every_system_in_it_is_on_the_page():
    for path in sorted((ROOT / "configs/paper").glob("*.toml")):
        assert f"configs/paper/{path.name}" in PAGE
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["row"]:
            if row.get("published") and path.stem != "table8":  # there every row is MDLM without something
                words = re.split(r"[ ,+]+| \(", row["name"])
                assert any(re.search(rf"^\| {re.escape(word)} \|", PAGE, re.M) for word in words), row["name"]


@pytest.mark.parametrize("word", WORDS)
def test_the_words_of_the_field_are_where_they_are_implemented(word):
    for path in WORDS[word]:
        assert word.lower() in (ROOT / "src/unmask" / path).read_text(encoding="utf-8").lower(), path


def test_the_fast_samplers_lead_to_the_plain_ones():
    for path, names in (("planned", ("ancestral", "cached")), ("../masked", ("semi_autoregressive",))):
        text = (ROOT / f"src/unmask/sampling/policies/{path}.py").read_text(encoding="utf-8")
        assert all(f"tests/reference/samplers.py:{name}" in text for name in names)
