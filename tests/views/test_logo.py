"""Logos: information in bits, and the height of a letter is its share of it."""

import numpy as np
import pytest

from unmask.text.tokens import vocabulary
from unmask.views.logo import information, letter_frequencies, logo_figure, logo_letters


def test_information_is_two_bits_for_a_certain_base_and_none_for_a_uniform_one():
    probs = np.array([[1.0, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]])
    assert information(probs) == pytest.approx([2, 0, 1])
    assert letter_frequencies(["AC", "AG"], "ACGT").tolist() == [[1, 0, 0, 0], [0, 0.5, 0.5, 0]]


def test_n_and_x_are_no_letters_of_a_logo():
    """With N a position where all four bases are equally likely would tell log2 5 − log2 4 bits, not none."""
    for kind, letters in (("dna", "ACGT"), ("caduceus", "ACGT"), ("protein", "ACDEFGHIKLMNPQRSTVWY")):
        ids, found = logo_letters(vocabulary.build_tokenizer(kind))
        assert "".join(found) == letters
        assert len(ids) == len(letters)


@pytest.mark.slow
def test_letters_are_stacked_as_high_as_their_share_of_the_bits():
    figure = logo_figure(np.array([[0.9, 0.1, 0, 0], [0.25] * 4]), "ACGT", start=7, mark=8)
    (axes,) = figure.axes
    boxes = [patch.get_path().get_extents() for patch in axes.patches][:2]
    bits = information(np.array([[0.9, 0.1, 0, 0]]))[0]
    heights = sorted(box.height for box in boxes)
    assert heights == pytest.approx([0.1 * bits, 0.9 * bits], rel=1e-3)
    assert axes.get_xlim()[0] == pytest.approx(6.4)


@pytest.mark.slow
def test_positions_of_a_chromosome_are_written_out():
    figure = logo_figure(np.array([[0.9, 0.1, 0, 0]] * 9), "ACGT", start=316_058)
    figure.canvas.draw()
    (axes,) = figure.axes
    assert axes.xaxis.get_offset_text().get_text() == ""
    assert "316060" in [label.get_text() for label in axes.get_xticklabels()]
