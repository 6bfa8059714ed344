"""An answer: losses, values and words of the same outputs agree."""

import pytest
import torch

from unmask.model.answer import Answer, Prediction, is_number


def test_a_number_that_is_predicted_rightly_has_no_loss_and_another_its_squared_error_in_units_of_the_spread():
    answer, outputs = Answer((), 2.5, 1.5), torch.tensor([[-1.0], [0.0], [2.0]])
    assert answer.values(outputs)[:, 0].tolist() == [1.0, 2.5, 5.5]
    assert answer.losses(outputs, torch.tensor([1.0, 2.5, 2.5])).tolist() == [0.0, 0.0, 4.0]
    assert answer.prediction([5.5]) == Prediction(None, {}, 5.5)
    assert answer.decisions(answer.values(outputs).numpy()).tolist() == [1.0, 2.5, 5.5]


def test_the_loss_of_a_label_is_minus_the_logarithm_of_its_probability():
    answer, outputs = Answer(("bad", "good", "so so")), torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])
    values = answer.values(outputs)
    losses = answer.losses(outputs, torch.tensor([float(answer.target(label)) for label in ("good", "bad")]))
    torch.testing.assert_close(losses, -values[[0, 1], [1, 0]].log())
    assert answer.decisions(values.numpy()).tolist() == [2, 0]
    assert answer.prediction(values[0].tolist()).label == "so so"


@pytest.mark.parametrize("text, number", [("1", True), ("-1e3", True), ("nan", True), ("", False), ("one", False)])
def test_what_is_a_number(text, number):
    assert is_number(text) == number
