"""Losses that show the network a noise level of their own: the recorded network runs again for each of them."""

from functools import partial

import pytest
import torch

from diffusion.conftest import read
from model.golden import config, network, recorded
from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.d3pm import softmax_log_probs
from unmask.diffusion.kernels.absorbing import kl_of_step
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.reverse import row_log_scores
from unmask.diffusion.rows import rows_where, spread
from unmask.diffusion.schedule import Cosine, CosineSquared, Geometric, LinearSigma, LogLinear
from unmask.diffusion.sedd import score_entropy
from unmask.diffusion.times import Count, Stratified
from unmask.errors import UserError
from unmask.model.passes.whole import logits_at
from unmask.random import Noise

NAMES = ["tiny", "mid"]
SCHEDULES = {
    "time": LogLinear(),
    "cosine": Cosine(),
    "cosinesqr": CosineSquared(),
    "linear": LinearSigma(1e-3, 7.0),
    "geometric": Geometric(1e-4, 20.0),
}


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_mdlm_loss_of_each_schedule_equals_the_reference(name, schedule):
    case, net = read(f"diffusion_{name}"), network(f"dit_{name}", time_conditioning=True)
    mask, recorded_loss = int(case["mask_index"]), case[f"loss_subs_{schedule}"]
    u = torch.where(case["xt"] == mask, 0.0, 1.0)  # hides what was hidden, whatever the level
    noise = Noise(case["t"], u)
    objective = MDLM(schedule=SCHEDULES[schedule], times=Stratified(low=0), whole=False)
    nats = objective.nats(partial(logits_at, net), CleanRows(case["x0"], noise=noise, mask=mask)).bound
    assert torch.allclose(nats, recorded_loss, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_the_shares_hidden_are_those_of_the_reference():
    t = torch.tensor([0.25, 1.0])
    for schedule in SCHEDULES.values():
        assert torch.equal(MDLM(schedule=schedule, whole=False).kernel().level(t).hidden, schedule.at(t).hidden)
        assert MDLM(schedule=schedule).kernel().level(t).hidden[-1] == 1
    assert MDLM(whole=False).estimator == "mdlm"
    assert "less the ends" in MDLM(whole=False).means
    with pytest.raises(UserError, match="whole"):
        MDLM(times=Count(), whole=False)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("setting", ["d3pm_T1000", "d3pm_T1000_submask", "d3pm_T50"])
def test_the_d3pm_loss_equals_the_reference(name, setting):
    total = 50 if setting.endswith("T50") else 1000
    # The run of 50 steps was recorded without time conditioning.
    case, net = read(f"diffusion_{name}"), network(f"dit_{name}", time_conditioning=total == 1000)
    t = case[f"t_disc_{setting}"].clamp(max=0.9999).double()  # the reference clamps, and weighs by α = 1 − t
    levels = (LogLinear(eps=0.0).at((t - back).clamp(min=0)) for back in (1 / total, 0))
    s, at = (level._replace(alpha=level.alpha.float(), hidden=level.hidden.float()) for level in levels)
    sigma = LogLinear().at(case[f"t_disc_{setting}"]).sigma  # but shows the network the schedule with its eps
    mask, rows = int(case["mask_index"]), rows_where(case["xt"] == int(case["mask_index"]))
    logits, row = logits_at(net, case["xt"], sigma, rows), rows // case["xt"].shape[1]
    log_p = softmax_log_probs(logits, mask=mask, zero_masking="submask" in setting)
    log_p_true = log_p.gather(-1, case["x0"].flatten()[rows, None]).squeeze(-1)
    kl = kl_of_step(log_p_true, log_p[:, mask].exp(), s.take(row), at.take(row))
    nats = spread(kl, rows, case["x0"])
    assert torch.allclose(total * nats, case[f"loss_diff_{setting}"].float(), rtol=1e-3, atol=2e-3)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_the_sedd_loss_of_the_geometric_schedule_equals_the_reference(name):
    case, net = read(f"diffusion_{name}"), network(f"dit_{name}", time_conditioning=True)
    mask, level = int(case["mask_index"]), Geometric(1e-4, 20.0).at(case["t"])
    rows = (case["xt"] == mask).flatten().nonzero().squeeze(-1)
    at = level.take(rows // case["xt"].shape[1])
    log_s = row_log_scores(logits_at(net, case["xt"], level.sigma, rows), at.sigma, mask=mask)
    nats = score_entropy(log_s, case["x0"].flatten()[rows], at, mask=mask)
    assert torch.allclose(nats, case["loss_sedd_geometric"].flatten()[rows], rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_the_autoregressive_loss_equals_the_reference():
    case, net = recorded("ar_tiny"), network("ar_tiny", reads_before=True)
    nats = (
        Autoregressive()
        .nats(partial(logits_at, net), CleanRows(case["x0"], mask=config("ar_tiny")["mask_index"]))
        .bound
    )
    real = case["attention_mask"][:, 1:]
    assert float((nats[:, 1:] * real).sum() / real.sum()) == pytest.approx(float(case["loss"]), rel=1e-5)
