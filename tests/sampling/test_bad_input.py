"""What a user gets wrong is said plainly."""

import pytest
import torch

from unmask.errors import UserError
from unmask.sampling.autoregressive import check_prompts
from unmask.sampling.masked import BlockWindows, Sliding, Whole, begin
from unmask.sampling.policies.confidence import Ordered
from unmask.sampling.policies.parallel import EntropyBound, Klass, Threshold
from unmask.sampling.policies.planned import Ancestral, FirstHitting, Groups
from unmask.sampling.policies.reverse import Analytic, D3PMReverse
from unmask.sampling.policy import POLICIES, policy_of
from unmask.text.prompt.canvas import blank, of_prompt, of_rows, of_tokens


def test_an_unknown_sampler_gets_the_nearest_name():
    with pytest.raises(UserError, match=r"no sampler is called 'first-hiting'\. Did you mean 'first-hitting'"):
        policy_of("first-hiting")
    with pytest.raises(UserError, match="no order is called 'entropi'"):
        Ordered("entropi")


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_name_makes_a_policy_with_a_law(name):
    policy = policy_of(name, steps=4 if POLICIES[name].budget else None)
    assert policy.law.split()[0].split("-")[0] in ("exact", "grid", "approximate")


def test_only_first_hitting_is_called_exact():
    laws = {name: policy_of(name, steps=4 if POLICIES[name].budget else None).law for name in POLICIES}
    assert [name for name, law in laws.items() if law == "exact"] == ["first-hitting"]


def test_steps_for_a_sampler_that_has_none_are_refused():
    with pytest.raises(UserError, match=r"steps are for .*ancestral, every-step, groups"):
        policy_of("first-hitting", steps=10)
    with pytest.raises(UserError, match="needs a number of steps"):
        policy_of("groups")


@pytest.mark.parametrize("steps", [0, -3])
@pytest.mark.parametrize("name", [name for name in POLICIES if POLICIES[name].budget])
def test_fewer_than_one_step_is_refused(name, steps):
    with pytest.raises(UserError, match="at least 1"):
        policy_of(name, steps=steps)


@pytest.mark.parametrize("name", [name for name in POLICIES if POLICIES[name].budget])
def test_more_steps_than_a_table_of_times_can_hold_are_refused(name):
    with pytest.raises(UserError, match="1,000,000 at most; saw 100,000,000"):
        policy_of(name, steps=10**8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Groups(),
        lambda: Groups(calls=2, sizes=(1, 2)),
        lambda: Groups(sizes=(1, 0)),
        lambda: Groups(sizes=()),
        lambda: Groups(calls=2, growth=0.5),
        lambda: Threshold(0),
        lambda: Threshold(1.1),
        lambda: EntropyBound(-1),
        lambda: Klass(calls_settled=0),
        lambda: Ancestral(0),
        lambda: D3PMReverse(0),
        lambda: Analytic(0),
        lambda: Sliding(8, 0),
        lambda: Sliding(8, 9),
        lambda: BlockWindows(0),
        lambda: blank(0, 5, mask=1),
        lambda: blank(1, 0, mask=1),
        lambda: of_prompt([1, 2, 3], length=3, mask=9),
        lambda: of_rows([], mask=9),
        lambda: of_rows([[1], []], mask=9),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(UserError):
        make()


def test_groups_that_are_too_small_for_the_blanks_say_so():
    with pytest.raises(UserError, match="groups of 3 tokens in all cannot fill 4 blanks"):
        begin(blank(1, 4, mask=9), Groups(sizes=(1, 2)))


def test_an_autoregressive_model_refuses_what_it_cannot_do():
    with pytest.raises(UserError, match="the first token of every row must be given"):
        check_prompts(blank(1, 4, mask=9))
    with pytest.raises(UserError, match="cannot fill blanks before given text"):
        check_prompts(of_tokens(torch.tensor([[1, 9, 2]]), mask=9))


def test_first_hitting_is_the_default_and_exact():
    assert FirstHitting().law == "exact"


@pytest.mark.parametrize("windows", [Whole(), Sliding(8, 3), Sliding(4, 4), Sliding(50, 2), BlockWindows(5)], ids=str)
@pytest.mark.parametrize("length", [1, 7, 8, 9, 31])
def test_windows_fill_every_position_once_and_see_what_they_fill(windows, length):
    spans = windows.spans(length)
    assert [i for span in spans for i in range(span.first, span.last)] == list(range(length))
    assert all(0 <= s.start <= s.first < s.last <= s.stop <= length for s in spans)
    if isinstance(windows, Sliding):
        assert all(s.stop - s.start == min(windows.context, length) for s in spans)
