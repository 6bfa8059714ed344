"""Numbers of the results pages come from records: a table after `<!-- records/NAME.json -->` holds only theirs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
MARK = re.compile(r"<!-- (?P<records>records/[^ ]+(?: records/[^ ]+)*) -->\n(?P<table>(?:\|.*\n)+)")
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?!\w)")
FRONT = DOCS / "results.md"
PAGES = [FRONT, *sorted((DOCS / "results").glob("*.md"))]
TABLES = [(match["records"].split(), match["table"]) for page in PAGES for match in MARK.finditer(page.read_text())]


def values(content: Any) -> Iterator[float]:
    if isinstance(content, dict):
        if {"good", "of"} <= content.keys() and content["of"]:
            yield content["good"] / content["of"]
        content = list(content.values())
    if isinstance(content, list):
        for one in content:
            yield from values(one)
    elif isinstance(content, str):
        for found in NUMBER.findall(content):
            yield float(found.replace(",", ""))
    elif type(content) in (int, float):
        yield abs(float(content))


def recorded(patterns: list[str]) -> list[float]:
    files = [path for pattern in patterns for path in sorted(DOCS.glob(pattern))]
    assert files, f"no record is called {patterns}"
    return [value for path in files for value in values(json.loads(path.read_text()))]


def traced(number: str, known: list[float]) -> bool:
    """Whether a number is a rounding of a recorded one, or of a recorded share in percent."""
    digits, said = len(number.partition(".")[2]), float(number.replace(",", ""))
    return any(abs(scale * value - said) <= 0.5000001 * 10**-digits for value in known for scale in (1, 100))


def test_there_are_tables_with_records():
    assert len(TABLES) >= 29


def test_every_mark_is_followed_by_its_table():
    assert sum(page.read_text().count("<!-- records/") for page in PAGES) == len(TABLES)


def test_the_front_page_fits_on_a_screen_and_all_its_numbers_have_records():
    lines = FRONT.read_text().splitlines()
    assert len(lines) <= 50
    table = [match["table"] for match in MARK.finditer(FRONT.read_text())]
    assert set(NUMBER.findall(FRONT.read_text())) == set(NUMBER.findall("".join(table)))


def test_every_page_of_results_is_linked_from_the_front_page():
    links = set(re.findall(r"\]\(results/([^)#]+)", FRONT.read_text()))
    assert links == {page.name for page in PAGES[1:]}


@pytest.mark.parametrize(("records", "table"), TABLES, ids=[" ".join(records) for records, _ in TABLES])
def test_every_number_of_a_table_is_in_its_records(records, table):
    known = recorded(records)
    missing = [number for number in NUMBER.findall(table) if not traced(number, known)]
    assert not missing, f"{missing} are not in {records}"
