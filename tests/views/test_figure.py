"""Figures as SVG that follows the page's colours."""

import sys

import pytest

from unmask.errors import UserError
from unmask.views.figure import COLOURS, INK, legend, panels, require_matplotlib, svg


@pytest.mark.slow
def test_the_ink_of_an_svg_is_that_of_the_page_and_the_lines_keep_their_colours():
    figure, (left, right) = panels(2, width=6)
    left.plot([1, 2], [1, 2], color=COLOURS[0], label="one")
    right.set(xlabel="x")
    legend(left, "title")
    written = svg(figure)
    assert written.startswith("<svg")
    assert INK not in written
    assert "currentColor" in written
    assert COLOURS[0] in written
    assert "#ffffff" not in written  # no background
    assert "#000000" not in written  # no ink of matplotlib's own


def test_without_matplotlib_the_error_names_what_to_install(monkeypatch):
    require_matplotlib("eval")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"needs matplotlib: pip install .*\[eval\]'"):
        require_matplotlib("eval")
