"""The reverse process: Bayes' rule on the forward one, and the reference's own step."""

import pytest
import torch

from exact import DOUBLE
from unmask.diffusion.kernels.absorbing import absorbing_log_step
from unmask.diffusion.reverse import reveal_chance
from unmask.diffusion.schedule import Cosine, Geometric, Level, LogLinear, Polynomial
from unmask.errors import UserError

MASK, VOCAB = 3, 4


def forward(x0: int, hidden: float) -> torch.Tensor:
    """q(x_t | x_0) as a vector."""
    law = torch.zeros(VOCAB, dtype=DOUBLE)
    law[x0], law[MASK] = 1 - hidden, hidden
    return law


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(), Geometric(), Polynomial(3)], ids=repr)
def test_posterior_is_bayes_rule_on_the_forward_process(schedule):
    s, t = (schedule.at(torch.tensor([time], dtype=DOUBLE)) for time in (0.3, 0.7))
    keep = float(t.alpha / s.alpha)  # α_{t|s}: a token visible at s is still visible at t
    for x0 in range(3):
        for x_t in (x0, MASK):
            prior = forward(x0, float(s.hidden))
            likelihood = torch.zeros(VOCAB, dtype=DOUBLE)
            for x_s in (x0, MASK):
                likelihood[x_s] = (x_t == MASK) * 1.0 if x_s == MASK else (1 - keep if x_t == MASK else keep)
            bayes = prior * likelihood / (prior * likelihood).sum()
            known = forward(x0, 0.0).log()[None]
            ours = absorbing_log_step(known, torch.tensor([x_t]), s, t, mask=MASK).exp()
            assert torch.allclose(ours[0], bayes, atol=1e-12)


def test_two_steps_reveal_as_much_as_one():
    r, s, t = (LogLinear(eps=0).at(torch.tensor([time], dtype=DOUBLE)) for time in (0.2, 0.5, 0.9))
    once = reveal_chance(r, t)
    twice = 1 - (1 - reveal_chance(r, s)) * (1 - reveal_chance(s, t))
    assert torch.allclose(once, twice)


def test_one_step_equals_the_reference(golden):
    mask = int(golden["mask_index"])
    flat = golden["xt"].flatten()
    t, s = (LogLinear().at(torch.full((len(flat),), time, dtype=DOUBLE)) for time in (0.62, 0.62 - 0.0625))
    log_p = golden["logp_subs"].double().flatten(0, 1)
    ours = absorbing_log_step(log_p, flat, s, t, mask=mask).exp().unflatten(0, golden["xt"].shape)
    theirs = golden["step_ddpm_subs_t0.62_dt0.0625_norm"]
    masked = golden["xt"] == mask
    assert torch.allclose(ours[masked], theirs[masked], atol=2e-6)
    assert torch.allclose(ours.sum(-1), torch.ones_like(ours[..., 0]))


def test_time_does_not_run_backwards():
    with pytest.raises(UserError, match="later"):
        reveal_chance(*(LogLinear().at(torch.tensor([time])) for time in (0.7, 0.3)))


def test_a_level_can_be_taken_at_rows():
    level = LogLinear().at(torch.tensor([0.1, 0.5, 0.9]))
    assert level.take(torch.tensor([2, 0])).hidden.tolist() == level.hidden[[2, 0]].tolist()
    assert isinstance(level.take(torch.tensor([1])), Level)
