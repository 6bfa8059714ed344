"""D3PM, SEDD and the autoregressive loss, against explicit KLs, MDLM and the reference."""

import pytest
import torch

from exact import DOUBLE, ChainWorld, TableWorld, every_text
from unmask.diffusion import d3pm, sedd
from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.corruption import hide
from unmask.diffusion.d3pm import D3PM
from unmask.diffusion.kernels.absorbing import kl_of_step
from unmask.diffusion.mdlm import MDLM, cross_entropy
from unmask.diffusion.reverse import row_log_scores
from unmask.diffusion.schedule import Cosine, Geometric, LogLinear
from unmask.diffusion.sedd import SEDD, score_entropy
from unmask.errors import UserError
from unmask.random import Noise


@pytest.mark.parametrize("schedule", [LogLinear(), LogLinear(eps=0.0), Cosine(), Geometric()], ids=repr)
@pytest.mark.parametrize("t, s", [(0.8, 0.7), (0.3, 0.2), (1.0, 0.5), (0.1, 0.0)])
def test_a_step_of_d3pm_with_mass_on_the_mask_is_the_explicit_kl(schedule, t, s):
    at_t, at_s = (schedule.at(torch.tensor([time], dtype=DOUBLE)) for time in (t, s))
    x = torch.tensor([0.2, 0.1, 0.4, 0.3], dtype=DOUBLE)  # x_θ; the last entry is the mask
    true, mask = 1, 3
    marginal = {
        name: level.alpha * x + level.hidden * torch.eye(4, dtype=DOUBLE)[mask]
        for name, level in (("t", at_t), ("s", at_s))
    }
    to_mask = torch.full((4,), float(1 - at_t.alpha / at_s.alpha), dtype=DOUBLE)
    to_mask[mask] = 1.0  # q(x_t = m | x_s)
    p = to_mask * marginal["s"] / marginal["t"][mask]
    clean = torch.eye(4, dtype=DOUBLE)[true]
    q = to_mask * (at_s.alpha * clean + at_s.hidden * torch.eye(4, dtype=DOUBLE)[mask]) / at_t.hidden
    explicit = float(torch.where(q > 0, q * (q / p).log(), 0.0).sum())
    ours = kl_of_step(x[true].log()[None], x[mask][None], at_s, at_t)
    assert p.sum() == pytest.approx(1.0)
    assert float(ours) == pytest.approx(explicit, abs=1e-10)


def test_alpha_of_the_earlier_time_is_used_where_it_belongs():
    """Other code has t − dt in the place of α_s and reports .2638 for .2853 here."""
    at_t, at_s = (LogLinear(eps=0.0).at(torch.tensor([time], dtype=DOUBLE)) for time in (0.8, 0.7))
    right = kl_of_step(torch.tensor([0.1], dtype=DOUBLE).log(), torch.tensor([0.3], dtype=DOUBLE), at_s, at_t)
    swapped = at_s._replace(alpha=at_s.hidden)
    wrong = kl_of_step(torch.tensor([0.1], dtype=DOUBLE).log(), torch.tensor([0.3], dtype=DOUBLE), swapped, at_t)
    assert abs(float(right - wrong)) > 1e-2


def test_d3pm_without_mass_on_the_mask_is_mdlm_plus_reconstruction():
    world = TableWorld.random()
    x0, t, u = (
        torch.tensor([[0, 2, 1]]),
        torch.tensor([0.55], dtype=DOUBLE),
        torch.tensor([[0.1, 0.9, 0.3]], dtype=DOUBLE),
    )
    d = (
        D3PM(LogLinear(0.0), steps=10, zero_masking=True)
        .nats(world.network, CleanRows(x0, noise=Noise(t, u), mask=3))
        .bound
    )
    m = MDLM(LogLinear(0.0), steps=10).nats(world.network, CleanRows(x0, noise=Noise(t, u), mask=3)).bound
    logits = world.network(x0, torch.zeros(1), torch.arange(3))[:, :3]
    assert torch.allclose(d - m, -logits.log_softmax(-1)[torch.arange(3), x0[0]][None])


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(), Geometric()], ids=repr)
def test_sedd_with_the_scores_of_a_denoiser_is_mdlm(schedule):
    """s = p/(e^σ − 1) makes score entropy the MDLM loss, term by term."""
    world, x0 = TableWorld.random(), torch.tensor([[0, 2, 1], [1, 1, 0]])

    def scores(x_t, sigma, rows):
        p = world.network(x_t, sigma, rows)[:, :3].log_softmax(-1)
        # SEDD subtracts log(e^σ − 1) + log(v − 1) itself.
        return torch.cat(
            [p + torch.log(torch.tensor(3.0, dtype=DOUBLE)), torch.zeros(len(rows), 1, dtype=DOUBLE)], -1
        )

    t, u = torch.tensor([0.4, 0.9], dtype=DOUBLE), torch.tensor([[0.1, 0.2, 0.9], [0.3, 0.1, 0.2]], dtype=DOUBLE)
    ours = SEDD(schedule).nats(scores, CleanRows(x0, noise=Noise(t, u), mask=3)).bound
    level = schedule.at(t)
    masked = cross_entropy(world.network, x0, hide(x0, level.hidden, u, mask=3), level.sigma, mask=3)
    assert torch.allclose(ours, level.weight[:, None] * masked, rtol=1e-9, atol=1e-12)


def test_score_entropy_is_zero_for_the_true_ratios_and_positive_otherwise():
    level = LogLinear().at(torch.tensor([0.5], dtype=DOUBLE))
    true = torch.full((1, 4), -60.0, dtype=DOUBLE)
    true[0, 2] = torch.log(level.alpha / level.hidden)[0]
    assert float(score_entropy(true, torch.tensor([2]), level, mask=3)) == pytest.approx(0.0, abs=1e-12)
    assert float(score_entropy(true + 0.1, torch.tensor([2]), level, mask=3)) > 1e-3


def test_the_terms_of_sedd_equal_the_explicit_kl_rate_between_reverse_processes():
    """Σ_y R̂_y − R_y + R_y log(R_y/R̂_y) over the rates of leaving the mask: the KL of two jump processes."""
    level = Cosine().at(torch.tensor([0.6], dtype=DOUBLE))
    log_s = torch.tensor([[0.3, -1.0, 0.2, 0.0]], dtype=DOUBLE)
    ours = score_entropy(log_s, torch.tensor([1]), level, mask=3)
    model = level.rate * log_s[0, :3].exp()
    truth = torch.tensor([0.0, float(level.rate * level.alpha / level.hidden), 0.0], dtype=DOUBLE)
    explicit = (model - truth).sum() + truth[1] * (truth[1] / model[1]).log()
    assert float(ours) == pytest.approx(float(explicit), abs=1e-12)


def test_sedd_without_a_noise_level_is_refused_and_not_nan():
    with pytest.raises(UserError, match="time conditioning"):
        row_log_scores(torch.zeros(2, 4), torch.zeros(2), mask=3)


def test_log_scores_and_the_loss_of_sedd_equal_the_reference(golden):
    mask, x0, x_t = int(golden["mask_index"]), golden["x0"], golden["xt"]
    rows = (x_t == mask).flatten().nonzero().squeeze(-1)
    level = LogLinear().at(golden["t"]).take(rows // x0.shape[1])
    log_s = row_log_scores(golden["logits_time"].flatten(0, 1)[rows], level.sigma, mask=mask)
    assert torch.allclose(log_s, golden["logscore_sedd_time"].flatten(0, 1)[rows], atol=2e-5)
    nats = score_entropy(log_s, x0.flatten()[rows], level, mask=mask)
    assert torch.allclose(nats, golden["loss_sedd"].flatten()[rows], rtol=1e-4, atol=1e-4)
    assert sedd.SEDD().schedule == LogLinear()


def test_log_probs_of_d3pm_equal_the_reference(golden):
    mask, v = int(golden["mask_index"]), int(golden["vocab_size"])
    logits = golden["logits_time"].view(-1, v)
    plain = d3pm.softmax_log_probs(logits, mask=mask)
    assert torch.allclose(plain, golden["logp_d3pm_time"].view(-1, v), atol=2e-5)
    zero = d3pm.softmax_log_probs(logits, mask=mask, zero_masking=True)
    theirs = golden["logp_d3pm_submask_time"].view(-1, v)
    assert torch.allclose(zero, torch.where(theirs < -1e5, -torch.inf, theirs), atol=2e-5)


def test_reconstruction_of_clean_text_equals_the_reference(golden):
    """The first row: the one whose logits on clean text are recorded."""
    mask, x0 = int(golden["mask_index"]), golden["x0"][:1]
    network = lambda x, sigma, rows: golden["logits_zero_nomask"].flatten(0, 1)[rows]  # noqa: E731
    for zero, name in ((False, "loss_recon_d3pm_T1000"), (True, "loss_recon_d3pm_T1000_submask")):
        ours = d3pm.reconstruction(network, CleanRows(x0, mask=mask), zero_masking=zero)
        assert torch.allclose(ours, golden[name][:1], rtol=1e-4, atol=1e-5)


def test_the_autoregressive_loss_is_the_exact_likelihood():
    world = ChainWorld.random(length=4)

    def network(x, sigma, rows):
        row, position = rows // 4, rows % 4
        return torch.cat([world.step[x[row, position - 1]].log(), torch.zeros(len(rows), 1, dtype=DOUBLE)], -1)

    texts = every_text(3, 4)
    nats = Autoregressive().nats(network, CleanRows(texts, mask=3)).bound
    assert (nats[:, 0] == 0).all()
    assert torch.allclose(nats.sum(1) - world.start[texts[:, 0]].log(), world.nll(texts))
    p = Autoregressive().log_probs(torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.long), mask=3)[0, 0].exp()
    assert torch.allclose(p[:3].sum(), torch.tensor(1.0))


def test_padding_is_left_out_of_the_autoregressive_loss():
    asked = []

    def network(x, sigma, rows):
        asked.append(rows.tolist())
        return torch.zeros(len(rows), 4)

    frozen = torch.tensor([[False, False, False], [False, True, True]])
    Autoregressive().nats(network, CleanRows(torch.tensor([[0, 1, 2], [0, 1, 1]]), mask=3, frozen=frozen))
    assert asked == [[1, 2]]


def test_rows_of_one_token_are_refused():
    with pytest.raises(UserError, match="at least two tokens; saw 1"):
        Autoregressive().nats(lambda x, s, rows: torch.zeros(len(rows), 4), CleanRows(torch.tensor([[0]]), mask=3))
