"""Numbers by their place in a result."""

import pytest

from unmask.studies.table import dig, places


@pytest.mark.parametrize(
    "path, value",
    [
        ("perplexity", 3.5),
        ("drawn.seconds", 2),
        ("results[set=ptb].perplexity", 7),
        ("results[set=none].perplexity", None),
        ("none", None),
        ("perplexity.deeper", None),
    ],
)
def test_a_value_by_its_place(path, value):
    content = {
        "perplexity": 3.5,
        "drawn": {"seconds": 2},
        "results": [{"set": "lm1b", "perplexity": 5}, {"set": "ptb", "perplexity": 7}],
    }
    assert dig(content, path) == value
    assert dig(content, path, "missing") == ("missing" if value is None else value)


def test_what_is_there_and_empty_is_not_missing():
    assert dig({"error": None}, "error", "missing") is None


def test_every_number_has_a_place_at_which_it_is_found():
    content = {
        "perplexity": 3.5,
        "drawn": {"seconds": 2, "named": "x"},
        "results": [{"set": "lm1b", "perplexity": 5}, {"set": "ptb", "perplexity": 7}],
        "curve": [1.0, 2.0],
        "none": None,
    }
    found = {place: dig(content, place) for place in places(content)}
    assert found == {
        "perplexity": 3.5,
        "drawn.seconds": 2,
        "results[set=lm1b].perplexity": 5,
        "results[set=ptb].perplexity": 7,
    }
