"""Shares, means and tables of the studies."""

import json
import math

import numpy as np
import pytest
from scipy.stats import binom

from studies.results import Mean, Share, Table, against, as_study, perplexity
from unmask.views.study import as_markdown, as_page


@pytest.mark.parametrize(
    ("good", "of", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962), (1, 20, 0.0089, 0.2361)],
)
def test_wilsons_interval_has_its_published_values(good, of, low, high):
    assert Share(good, of).interval == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_wilsons_interval_holds_the_true_share_about_95_times_in_100(p):
    n, covered = 60, 0.0
    for good in range(n + 1):
        low, high = Share(good, n).interval
        covered += binom.pmf(good, n, p) * (low <= p <= high)
    assert 0.92 < covered < 0.98


def test_a_perplexity_is_over_tokens_not_over_texts():
    assert perplexity([10.0, 1.0], [10, 2]).value == pytest.approx(math.exp(11 / 12))


def test_a_paired_difference_does_not_see_what_texts_share():
    easy_and_hard = np.array([1.0, 5.0, 9.0])
    found = against(list(easy_and_hard + 0.5), list(easy_and_hard))
    assert (found.value, found.error) == (pytest.approx(0.5), pytest.approx(0, abs=1e-12))


def test_a_table_tells_the_same_as_text_markdown_and_json():
    table = Table("T", ("a", "b", "c"), ((1, Share(3, 4), Mean(2.0, 0.5)), ("x", None, Mean(1.0, math.inf))), ("n",))
    assert table.markdown().splitlines()[2:5] == [
        "| a | b | c |",
        "|---|---|---|",
        "| 1 | 75.0 % (30.1 to 95.4) | 2.00 ± 0.50 |",
    ]
    assert "1  75.0 % (30.1 to 95.4)  2.00 ± 0.50" in table.text()
    rows = json.loads(json.dumps(table.json(), allow_nan=False))["rows"]
    assert (rows[0]["b"]["good"], rows[0]["b"]["of"], rows[0]["c"]) == (3, 4, {"value": 2.0, "error": 0.5})
    assert (rows[1]["b"], rows[1]["c"]["error"]) == (None, None)


def test_a_table_in_the_form_of_a_study():
    rows = (("a", "off", Share(3, 4), Mean(2.0, 0.5), "8.0"), ("a", "on", Share(1, 4), None, "> 9"))
    table = as_study(Table("T", ("method", "constraint", "solved", "ppl", "calls"), rows, ("Read this.",)).json())
    assert as_markdown(table).splitlines()[2:6] == [
        "| system | solved (%) | ppl | calls |",
        "| --- | --- | --- | --- |",
        "| a, constraint off | 75.0 ± 16.7 | 2.00 ± 0.50 | 8.00 |",
        "| a, constraint on | 25.0 ± 16.7 | not measured | not measured |",
    ]
    assert "Read this." in as_page(table)
