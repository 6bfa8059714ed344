"""Numbers by their place in a result."""

import pytest

from unmask.studies.table import dig


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
