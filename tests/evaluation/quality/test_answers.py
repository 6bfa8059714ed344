"""Answers are checked one by one, and the references in their place."""

import pytest

from unmask.errors import UserError
from unmask.evaluation.quality.answers import Answered, assess_answers, steps, values

GIVEN = "58,11,80,83,81"


@pytest.mark.parametrize(
    "answer, form, equations, right",
    [
        ("80-58=22,22/11=2,83-2=81", 1, 1, 1),
        (" 80-58=22,22/11=2,83-2=81\n", 1, 1, 1),
        ("80-58=22,22/11=2,83+2=85", 1, 1, 0),  # another target
        ("80-58=22,22/11=2,83-1=81", 0, 2 / 3, 0),  # a number that is not there, a wrong equation
        ("80-58=22,80-58=22,83-2=81", 0, 1, 0),  # numbers used twice
        ("83-2=81", 0, 1, 0),
        ("80/11=7,58-7=51,83-51=32", 1, 2 / 3, 0),  # division without a rest only
        ("80-58=22,", 0, 1 / 2, 0),
        ("", 0, 0, 0),
        ("word", 0, 0, 0),
    ],
)
def test_a_countdown_uses_each_number_once_and_ends_at_the_target(answer, form, equations, right):
    assert steps(GIVEN, "", answer) == {"form": form, "equations": equations, "right": right}


def test_division_by_nothing_does_not_hold():
    assert steps("5,0,5", "", "5/0=5")["equations"] == 0


def test_values_are_found_whatever_their_case_and_spaces_and_yes_and_no_are_not_looked_for():
    given = "name : Blue Spice | price : £ 20 - 25 | family friendly : no | near : Crowne Plaza Hotel"
    assert values(given, "", "blue  spice is near Crowne Plaza Hotel, £20-25.") == {"values": 1}
    assert values(given, "", "Blue Spice has no price") == {"values": pytest.approx(1 / 3)}
    assert values("no table", "", "x") == {}


def test_shares_have_error_bars_and_stand_beside_the_references():
    some = [Answered("a", "right", "right "), Answered("a", "right", "wrong"), *[Answered("a", "right", "")] * 2]
    result = assess_answers(some, "exact")
    assert result["shares"] == {"exact": {"value": 0.25, "standard_error": pytest.approx(0.25)}}
    assert result["of_references"] == {"exact": {"value": 1, "standard_error": 0}}
    assert result["empty"] == 2
    with pytest.raises(UserError, match="at least 2 prompts"):
        assess_answers(some[:1], "exact")
    with pytest.raises(UserError, match="Did you mean 'exact'"):
        assess_answers(some, "exac")
