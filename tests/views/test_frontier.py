"""Points of a frontier as a figure and as a table."""

import pytest

from unmask.views.frontier import HEAD, PARTIAL, by_sampler, frontier_figure, frontier_part, point_cells


def test_a_point_has_a_cell_for_each_column(points):
    row = dict(zip(HEAD, point_cells(points[0]), strict=True))
    assert row["steps"] == ""
    assert row["passes"] == "1,024"
    assert row["s per sample"] == "1.02"
    assert row["gen. perplexity"] == "20.00 ± 0.50"
    assert row["entropy"] == "5.000 ± 0.000"


def test_points_of_one_sampler_and_temperature_are_one_line(points):
    lines = by_sampler([*points, {**points[0], "temperature": 0.5}])
    assert {name: len(some) for name, some in lines.items()} == {
        "first-hitting, T = 1": 1,
        "ancestral, T = 1": 2,
        "first-hitting, T = 0.5": 1,
    }


@pytest.mark.slow
def test_the_figure_shows_perplexity_by_passes_time_and_entropy(points):
    drawn = frontier_figure(points, "pooled")
    assert [axes.get_xlabel() for axes in drawn.axes] == [
        "forward passes",
        "seconds per sample",
        "entropy of a sample, nats",
    ]
    ancestral = drawn.axes[0].get_lines()
    assert [8, 31] in [list(line.get_xdata()) for line in ancestral]
    shown = frontier_part(points, drawn, {"seed": 0}, partial=True)
    assert shown.warnings == [PARTIAL, "ancestral: low <entropy>"]
    assert shown.note == "Perplexity: exp of the judge's nats per token. Error bars over 8 samples."
    assert len(shown.rows) == 3
    assert PARTIAL not in frontier_part(points, drawn, {}, partial=False).warnings
