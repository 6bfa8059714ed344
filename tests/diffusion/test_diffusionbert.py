"""DiffusionBERT: the recorded numbers of its code, the bound that is one, and that the published number is not."""

import math
from itertools import pairwise, product

import pytest
import torch

from exact import DOUBLE, every_text
from model.golden import FOLDER, arrays_of
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.d3pm import D3PM
from unmask.diffusion.diffusionbert import (
    DiffusionBERT,
    Frequency,
    PublishedNumber,
    centred_by_row,
    published_keep,
    published_kl,
)
from unmask.diffusion.kernels.spindle import kl_of_spindle_step, spindle_reveal_chance, visible_chance
from unmask.diffusion.schedule import LogLinear
from unmask.errors import UserError
from unmask.evaluation.likelihood.estimators import estimator
from unmask.random import Noise

WORDS, MASK, TOTAL = 3, 3, 8


def counted(*counts: float) -> Frequency:
    table = Frequency(len(counts)).double()
    table.counts.copy_(torch.tensor(counts, dtype=DOUBLE))
    return table


@pytest.mark.parametrize("name, strength", [("spindle", 0.3), ("absorbing", 0.0)])
def test_levels_posteriors_and_the_number_of_the_code_are_the_recorded_ones(name, strength):
    case = arrays_of(FOLDER / "baselines" / "diffusionbert_cases.npz")
    total, mask, real = int(case["T"]), int(case["mask"]), case["attention_mask"] > 0
    table = Frequency(len(case["counts"]))
    table.fill(case["counts"])
    assert torch.allclose(table.logarithmic, case["freq"])
    centred = centred_by_row(table.logarithmic[case["x0"]], real)
    assert torch.allclose(centred[real], case["centred_freq"][real])

    def log_p(x_t, time):
        x = case["embed"][x_t]
        mixed = x @ case["net_A"] + x.mean(1, keepdim=True) @ case["net_C"] + time * case["net_w"]
        return (torch.tanh(mixed) @ case["net_B"]).log_softmax(-1)

    def kl(x_t, i):
        keep = published_keep(torch.full((3,), i), case["centred_freq"], total=total, strength=strength)
        assert torch.allclose(keep, case[f"{name}_keep"][i], atol=1e-6)
        beta = torch.full((x_t.numel(),), 1 / (total - i))
        flat = log_p(x_t, (i + 1) / total).flatten(0, 1)
        return published_kl(flat, case["x0"].flatten(), x_t.flatten(), keep.flatten(), beta, mask=mask).view(
            x_t.shape
        )

    for i in range(total):
        assert torch.allclose(kl(case[f"{name}_x_t1"][i], i)[real], case[f"{name}_kl"][i][real], atol=1e-5)
    found = float(case[f"{name}_elbo_step1_prior"])
    for i, u in zip(reversed(range(total)), case[f"{name}_elbo_step1_u"], strict=True):
        keep = case[f"{name}_keep"][i + 1]  # drawn by the inverse of the CDF, in the order of the ids
        shown = torch.where(case["x0"] < mask, u < keep, u >= 1 - keep)
        x_t = torch.where(shown, case["x0"], mask)
        found += float(kl(x_t, i)[real].sum())
    assert found == pytest.approx(float(case[f"{name}_elbo_step1"]), rel=1e-4)


@pytest.mark.parametrize("levels", ["counts", "information"])
def test_the_steps_of_a_token_multiply_to_its_level_and_its_posterior_is_bayes_rule(levels):
    """Two states, visible and hidden: the forward chain of every token, and q(x_s | x_t, x_0) from it."""
    f = counted(50, 5, 1, 0).shift(levels, strength=0.3)
    times = torch.linspace(0, 1, TOTAL + 1, dtype=DOUBLE)
    for v in range(WORDS):
        k = visible_chance(times, f[v].expand_as(times), strength=0.3)
        assert (k[0], k[-1]) == (1, 0)
        assert (k.diff() <= 0).all()
        alive = torch.ones((), dtype=DOUBLE)
        for s, t in pairwise(k):
            stay = t / s
            alive = alive * stay
            assert torch.allclose(alive, t)
            joint = s * (1 - stay), 1 - s  # visible at s and hidden at t, hidden at both
            assert torch.allclose(spindle_reveal_chance(s, t), joint[0] / (joint[0] + joint[1]))
    assert (
        visible_chance(times, f[0].expand_as(times), strength=0.3)[1:-1]
        > visible_chance(times, f[2].expand_as(times), strength=0.3)[1:-1]
    ).all()


def test_by_information_the_visible_share_of_it_falls_linearly():
    """Σ_v p_v H_v k_v/Σ_v p_v H_v = 1 − t where nothing is cut: these counts are alike enough."""
    table = counted(60, 50, 40, 30)
    f, h = table.shift("information", strength=0.3), -((table.counts + 1) / (table.counts + 1).sum()).log()
    assert torch.equal(f, table.informed)
    for t in torch.linspace(0, 1, 9, dtype=DOUBLE):
        k = visible_chance(t.expand_as(f), f, strength=0.3)
        assert torch.allclose((table.counts * h * k).sum() / (table.counts * h).sum(), 1 - t)
    assert counted(1000, 5, 1, 0).shift("information", strength=0.3).max() == pytest.approx(1 / (0.3 * math.pi))


def test_without_a_spindle_it_is_d3pm_that_never_predicts_the_mask():
    table = torch.randn(16, 2, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    network = lambda x, sigma, rows: table[x[:, 0] * 4 + x[:, 1]].flatten(0, 1)[rows]  # noqa: E731
    x0, noise = every_text(3, 2), Noise(torch.linspace(0.01, 0.99, 9, dtype=DOUBLE), torch.rand(9, 2, dtype=DOUBLE))
    ours = DiffusionBERT(strength=0, steps=TOTAL, hybrid=0)
    theirs = D3PM(LogLinear(eps=0), steps=TOTAL, zero_masking=True, bound="austin")
    found = ours.nats(network, CleanRows(x0, noise=noise, mask=MASK, parts={"frequency": counted(5, 2, 1, 0)})).bound
    assert torch.allclose(found, theirs.nats(network, CleanRows(x0, noise=noise, mask=MASK)).bound)


def expected(objective, table, x0, parts, keep):
    """The number of each text (n): every step and every mask enumerated, through the objective's own `nats`."""
    step = torch.arange(TOTAL).repeat_interleave(4 * len(x0))
    hide = torch.tensor(list(product((True, False), repeat=2))).repeat_interleave(len(x0), 0).repeat(TOTAL, 1)
    x = x0.repeat(4 * TOTAL, 1)
    k = torch.cat([keep(i).repeat(4, 1) for i in range(1, TOTAL + 1)])
    chance = torch.where(hide, 1 - k, k).prod(1)

    def network(x_t, sigma, rows):
        return table[step, x_t[:, 0] * 4 + x_t[:, 1]].flatten(0, 1)[rows]

    noise = Noise((step + 0.5).double() / TOTAL, torch.where(hide, 0.0, 1.0).double())
    found = objective.nats(network, CleanRows(x, noise=noise, mask=MASK, parts=parts)).bound.sum(1) / TOTAL
    return torch.where(chance > 0, chance * found, 0.0).view(-1, len(x0)).sum(0)


@pytest.fixture(scope="module")
def trained():
    """Both numbers of every text in a world of three words and two positions, networks trained on each."""
    generator = torch.Generator().manual_seed(5)
    x0, words = every_text(WORDS, 2), torch.tensor([0.8, 0.15, 0.05], dtype=DOUBLE)
    law = words[x0].prod(1) * (0.7 * torch.randn(len(x0), generator=generator, dtype=DOUBLE)).exp()
    law = law / law.sum()
    counts = torch.zeros(4, dtype=DOUBLE).index_add(0, x0.flatten(), 1000 * law.repeat_interleave(2))
    parts = {"frequency": counted(*counts.tolist())}
    ours = DiffusionBERT(steps=TOTAL, hybrid=0)
    f, by_row = parts["frequency"].centred, centred_by_row(parts["frequency"].logarithmic[x0], x0 >= 0)
    informed = DiffusionBERT(steps=TOTAL, hybrid=0, levels="information")
    shift = informed.kernel(parts).shift
    levels = {
        ours: lambda i: visible_chance(torch.full(x0.shape, i / TOTAL, dtype=DOUBLE), f[x0], strength=0.3),
        informed: lambda i: visible_chance(torch.full(x0.shape, i / TOTAL, dtype=DOUBLE), shift[x0], strength=0.3),
        PublishedNumber(ours): lambda i: published_keep(torch.full((len(x0),), i), by_row, total=TOTAL, strength=0.3),
    }
    found = {}
    for objective, keep in levels.items():
        table = torch.zeros(TOTAL, 16, 2, 4, dtype=DOUBLE, requires_grad=True)
        optimizer = torch.optim.Adam([table], lr=0.2)
        for _ in range(150):
            optimizer.zero_grad()
            (law * expected(objective, table, x0, parts, keep)).sum().backward()
            optimizer.step()
        with torch.no_grad():
            found["information" if objective is informed else objective.name] = expected(
                objective, table, x0, parts, keep
            )
    return law, found


@pytest.mark.slow
def test_the_bound_is_one_and_the_published_number_is_not(trained):
    """Σ_x exp(−bound) is at most 1 for a bound of any model; the published number exceeds it, below the entropy."""
    law, found = trained
    entropy = float(torch.special.entr(law).sum())
    sums = {name: float((-nats).exp().sum()) for name, nats in found.items()}
    means = {name: float((law * nats).sum()) for name, nats in found.items()}
    for name in ("diffusionbert", "information"):
        assert sums[name] <= 1
        assert means[name] > entropy
    assert sums["published"] > 1
    assert means["published"] < entropy


def test_a_step_is_the_explicit_kl_and_the_sampler_s_probabilities_add_up_to_one():
    log_p = torch.tensor([[0.5, 0.3, 0.2, 0.0]], dtype=DOUBLE).log()
    r = torch.tensor([[0.1, 0.4, 0.9, 0.5]], dtype=DOUBLE)
    p = torch.cat((log_p.exp()[0, :3] * r[0, :3], (log_p.exp() * (1 - r)).sum()[None]))
    assert float(p.sum()) == pytest.approx(1)
    for true in range(WORDS):
        q = torch.zeros(4, dtype=DOUBLE)
        q[true], q[3] = r[0, true], 1 - r[0, true]
        explicit = torch.where(q > 0, q * (q / p).log(), 0.0).sum()
        assert float(kl_of_spindle_step(log_p, torch.tensor([true]), r)) == pytest.approx(float(explicit))


def test_a_schedule_that_shows_tokens_again_and_a_foreign_table_are_refused():
    with pytest.raises(UserError, match=r"from 0 to 1/π = 0\.318"):
        DiffusionBERT(strength=0.4)
    assert DiffusionBERT(strength=1 / math.pi).strength > 0.318
    with pytest.raises(UserError, match="another tokenizer"):
        Frequency(4).fill(torch.ones(5, dtype=torch.long))


def test_the_published_number_is_named_as_what_it_is():
    one = estimator("published", objective=DiffusionBERT(), parts={"frequency": Frequency(4)})
    assert not one.likelihood
    assert "not a bound" in one.means
