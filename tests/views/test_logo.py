"""Logos: information in bits, and the height of a letter is its share of it."""

import numpy as np
import pytest

from unmask.views.logo import frequencies, information, logo_figure


def test_information_is_two_bits_for_a_certain_base_and_none_for_a_uniform_one():
    probs = np.array([[1.0, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]])
    assert information(probs) == pytest.approx([2, 0, 1])
    assert frequencies(["AC", "AG"], "ACGT").tolist() == [[1, 0, 0, 0], [0, 0.5, 0.5, 0]]


@pytest.mark.slow
def test_letters_are_stacked_as_high_as_their_share_of_the_bits():
    figure = logo_figure(np.array([[0.9, 0.1, 0, 0], [0.25] * 4]), "ACGT", start=7, mark=8)
    (axes,) = figure.axes
    boxes = [patch.get_path().get_extents() for patch in axes.patches][:2]
    bits = information(np.array([[0.9, 0.1, 0, 0]]))[0]
    heights = sorted(box.height for box in boxes)
    assert heights == pytest.approx([0.1 * bits, 0.9 * bits], rel=1e-3)
    assert axes.get_xlim()[0] == pytest.approx(6.4)
