"""Every schedule has the same properties; the recorded ones equal the reference."""

import math

import pytest
import torch

from unmask.diffusion.schedule import (
    SCHEDULES,
    Cosine,
    CosineSquared,
    Geometric,
    LinearSigma,
    LogLinear,
    Polynomial,
)
from unmask.errors import UserError

ALL = [
    LogLinear(),
    LogLinear(eps=0),
    Cosine(),
    Cosine(eps=0),
    CosineSquared(),
    CosineSquared(eps=0),
    LinearSigma(),
    LinearSigma(low=0, high=40),
    Geometric(),
    Polynomial(1),
    Polynomial(3),
]
FROM_CLEAN = [s for s in ALL if not isinstance(s, Geometric) and s != LinearSigma()]
TIMES = torch.linspace(0, 1, 101, dtype=torch.float64)


def name_of(schedule) -> str:
    return repr(schedule)


@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_text_only_gets_more_hidden_and_shares_add_up(schedule):
    level = schedule.at(TIMES)
    assert (level.alpha.diff() < 0).all()
    assert (level.hidden.diff() >= 0).all()
    assert (level.slope >= 0).all()
    assert torch.allclose(level.alpha + level.hidden, torch.ones_like(TIMES), atol=1e-15)
    assert ((level.hidden >= 0) & (level.hidden <= 1)).all()


@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_slope_is_the_derivative_of_the_hidden_share(schedule):
    t = TIMES[1:-1].clone().requires_grad_()
    level = schedule.at(t)
    (derivative,) = torch.autograd.grad(level.hidden.sum(), t)
    assert torch.allclose(level.slope, derivative, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_when_is_the_inverse_of_at(schedule):
    t = TIMES[1:-1]
    # Beyond σ = 20 the hidden share is 1 to the last bit, and no inverse can tell such times apart.
    t = t[schedule.at(t).sigma < 20]
    assert torch.allclose(schedule.when(schedule.at(t).hidden), t, atol=1e-7)
    assert torch.allclose(
        schedule.at(schedule.when(torch.tensor(0.25, dtype=torch.float64))).hidden, torch.tensor(0.25).double()
    )


@pytest.mark.parametrize("schedule", FROM_CLEAN, ids=name_of)
def test_hidden_share_is_accurate_near_clean_text_where_subtraction_is_not(schedule):
    t = torch.tensor([1e-4, 1e-5], dtype=torch.float32)
    exact = schedule.at(t.double()).hidden
    assert torch.allclose(schedule.at(t).hidden.double(), exact, rtol=1e-5, atol=0)


def test_subtraction_from_alpha_would_have_lost_all_digits():
    level = Polynomial(3).at(torch.tensor([1e-5], dtype=torch.float32))
    assert level.hidden.item() == pytest.approx(1e-15, rel=1e-5)
    assert (1 - level.alpha).item() == 0


@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_sigma_and_rate_follow_from_alpha(schedule):
    t = TIMES[1:-1]
    level = schedule.at(t)
    assert torch.allclose(torch.exp(-level.sigma), level.alpha, rtol=1e-12)
    assert torch.allclose(level.rate * level.alpha, level.slope, rtol=1e-12)
    assert torch.allclose(level.weight, level.rate / torch.expm1(level.sigma), rtol=1e-9)


def test_the_weight_of_log_linear_is_one_over_t():
    t = TIMES[1:]
    assert torch.allclose(LogLinear().at(t).weight, 1 / t, rtol=1e-14)


@pytest.mark.parametrize(
    "name, schedule",
    [
        ("loglinear", LogLinear()),
        ("cosine", Cosine()),
        ("cosinesqr", CosineSquared()),
        ("linear", LinearSigma(1e-3, 7.0)),
        ("geometric", Geometric(1e-4, 20.0)),
    ],
)
def test_schedules_equal_the_reference(golden, name, schedule):
    level = schedule.at(golden["noise_t"])
    total, rate = golden[f"noise_{name}_total"], golden[f"noise_{name}_rate"]
    assert torch.allclose(level.sigma, total, rtol=2e-5, atol=1e-6)
    assert torch.allclose(level.rate, rate.expand_as(level.rate), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, math.inf])
def test_times_outside_the_unit_interval_are_refused(bad):
    for schedule in ALL:
        with pytest.raises(UserError, match=r"\[0, 1\]"):
            schedule.at(torch.tensor([0.5, bad]))


def test_settings_that_make_no_schedule_are_refused():
    for make in (
        lambda: LogLinear(eps=1.0),
        lambda: Cosine(eps=-0.1),
        lambda: LinearSigma(low=2.0, high=1.0),
        lambda: Geometric(low=0.0),
        lambda: Polynomial(0.5),
    ):
        with pytest.raises(UserError, match="saw"):
            make()


def test_schedules_are_found_by_name_and_wrong_names_get_a_guess():
    assert SCHEDULES.make("log-linear:eps=0") == LogLinear(eps=0.0)
    assert {type(s) for s in ALL} == {SCHEDULES[name] for name in SCHEDULES}
    with pytest.raises(UserError, match="Did you mean 'cosine'"):
        SCHEDULES.make("cosin")
