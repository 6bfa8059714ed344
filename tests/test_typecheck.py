"""Shapes are checked in the first calls of every test, and again in the next test."""

import jaxtyping
import pytest
import torch

import typecheck
from unmask.diffusion.reverse import row_log_scores
from unmask.diffusion.schedule import LogLinear

LOGITS, SIGMA, LONGER = torch.zeros(2, 3), torch.ones(2), torch.ones(3)[:, None]


def test_a_wrong_shape_is_refused_until_a_function_was_called_often_and_in_the_next_test_again():
    def wrong():
        return row_log_scores(LOGITS, LONGER, mask=0)

    for _ in range(typecheck.CALLS // 2):
        row_log_scores(LOGITS, SIGMA, mask=0)
    with pytest.raises(jaxtyping.TypeCheckError):
        wrong()
    for _ in range(typecheck.CALLS):
        row_log_scores(LOGITS, SIGMA, mask=0)
    assert row_log_scores(LOGITS, torch.ones(2), mask=0).shape == LOGITS.shape
    assert not refused(wrong)
    typecheck.begin_test()
    assert refused(wrong)


def test_a_field_of_a_wrong_type_is_refused():
    with pytest.raises(jaxtyping.TypeCheckError):
        LogLinear(eps="small")


def refused(call) -> bool:
    try:
        call()
    except jaxtyping.TypeCheckError:
        return True
    except (RuntimeError, IndexError):  # torch's own words
        return False
    return False
