"""SUBS: zero-masking and carry-over always hold, each term is an explicit KL, and the reference agrees."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exact import DOUBLE, TableWorld, TinyNetwork
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.d3pm import D3PM
from unmask.diffusion.kernels.absorbing import absorbing_log_step
from unmask.diffusion.mdlm import MDLM, cross_entropy, log_probs
from unmask.diffusion.rows import forbid, row_nats, rows_where, spread
from unmask.diffusion.schedule import Cosine, LogLinear, Polynomial
from unmask.diffusion.times import Count, Stratified
from unmask.errors import UserError
from unmask.random import Noise


def recorded(logits):
    """A network that gives recorded logits, whatever it is shown."""
    return lambda x_t, sigma, rows: logits.flatten(0, 1)[rows]


def minus_infinity(x: torch.Tensor) -> torch.Tensor:
    """The reference writes −1e6 where we write −inf."""
    return torch.where(x < -1e5, -torch.inf, x)


def test_log_probs_equal_the_reference(golden):
    ours = log_probs(golden["logits_zero"], golden["xt"], mask=int(golden["mask_index"]))
    assert torch.allclose(ours, minus_infinity(golden["logp_subs"]), atol=2e-5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 6), st.integers(2, 9))
def test_visible_tokens_are_copied_and_the_mask_is_never_predicted(seed, b, l, v):
    generator = torch.Generator().manual_seed(seed)
    mask = int(torch.randint(0, v, (1,), generator=generator))
    logits = 20 * torch.randn(b, l, v, generator=generator)
    x_t = torch.randint(0, v, (b, l), generator=generator)
    probs = log_probs(logits, x_t, mask=mask).exp()
    hidden = x_t == mask
    assert (probs[hidden][:, mask] == 0).all()
    assert torch.allclose(probs.sum(-1), torch.ones(b, l), atol=1e-5)
    assert (probs.gather(-1, x_t[..., None]).squeeze(-1)[~hidden] == 1).all()


@pytest.mark.parametrize("setting", ["subs", "subs_time", "subs_T1000"])
def test_losses_equal_the_reference(golden, setting):
    mask, x0, x_t = int(golden["mask_index"]), golden["x0"], golden["xt"]
    logits = golden["logits_time" if setting == "subs_time" else "logits_zero"]
    t = golden["t_disc_subs_T1000"] if setting == "subs_T1000" else golden["t"]
    nats = cross_entropy(recorded(logits), x0, x_t, t, mask=mask) / t[:, None]
    assert torch.allclose(nats, golden[f"loss_{setting}"], rtol=1e-4, atol=1e-5)


def test_the_mean_over_real_tokens_equals_the_reference(golden):
    nats = cross_entropy(
        recorded(golden["logits_zero"]), golden["x0"], golden["xt"], golden["t"], mask=int(golden["mask_index"])
    )
    weighted = nats / golden["t"][:, None] * golden["attention_mask"]
    assert float(weighted.sum() / golden["attention_mask"].sum()) == pytest.approx(
        float(golden["reduced_loss"]), rel=1e-5
    )


@pytest.mark.parametrize("schedule", [LogLinear(), LogLinear(eps=0), Cosine(), Polynomial(3)], ids=repr)
@pytest.mark.parametrize("total", [1, 3, 10])
def test_each_step_of_the_discrete_bound_is_the_kl_between_posterior_and_model(schedule, total):
    world = TableWorld.random()
    x0 = torch.tensor([[0, 2, 1]])
    for i in range(1, total + 1):
        t, s = (schedule.at(torch.tensor([j / total], dtype=DOUBLE)) for j in (i, i - 1))
        for bits in range(8):
            u = torch.tensor([[0.0 if bits >> j & 1 else 1.0 for j in range(3)]], dtype=DOUBLE)
            x_t = torch.where(u < t.hidden, 3, x0)
            nats = (
                MDLM(schedule, steps=total)
                .nats(
                    world.network,
                    CleanRows(x0, noise=Noise(torch.tensor([(i - 0.5) / total], dtype=DOUBLE), u), mask=3),
                )
                .bound
            )
            logits = world.network(x_t, s.sigma, torch.arange(3)).view(1, 3, 4)
            known = torch.nn.functional.one_hot(x0[0], 4).to(DOUBLE).log()
            of_row = s.take(torch.zeros(3, dtype=torch.long)), t.take(torch.zeros(3, dtype=torch.long))
            p, q = (
                absorbing_log_step(log_p, x_t[0], *of_row, mask=3).exp()
                for log_p in (log_probs(logits, x_t, mask=3)[0], known)
            )
            kl = torch.where(q > 0, q * (q / p).log(), 0.0).sum(-1)
            assert torch.allclose(nats / total, kl, atol=1e-10)


@pytest.mark.parametrize("total", [1, 2, 10, 100, 1000, 10_000])
def test_the_discrete_loss_is_finite_at_its_first_step(total):
    """Other code divides 0 by 0 at t = 1/T, or never draws the first steps."""
    world, x0 = TableWorld.random(), torch.tensor([[0, 2, 1]])
    for objective in (MDLM(steps=total), MDLM(steps=total, zero_masking=False), D3PM(steps=total)):
        for t in (0.0, 1 / total, 1.0):
            u = torch.zeros(1, 3, dtype=DOUBLE)
            nats = objective.nats(
                world.network, CleanRows(x0, noise=Noise(torch.tensor([t], dtype=DOUBLE), u), mask=3)
            ).bound
            assert torch.isfinite(nats).all()
            assert (nats > 0).all()


def test_at_time_zero_nothing_is_hidden_and_nothing_is_paid():
    world, x0 = TableWorld.random(), torch.tensor([[0, 2, 1]])
    nats = (
        MDLM()
        .nats(
            world.network,
            CleanRows(x0, noise=Noise(torch.zeros(1, dtype=DOUBLE), torch.zeros(1, 3, dtype=DOUBLE)), mask=3),
        )
        .bound
    )
    assert (nats == 0).all()


def test_the_switches_of_table_8_nest():
    """With the mask impossible anyway, zero-masking changes nothing; no carry-over adds the clean term."""
    world, x0 = TableWorld.random(), torch.tensor([[0, 2, 1]])
    world.table[..., 3] = -torch.inf
    noise = Noise(torch.tensor([0.55], dtype=DOUBLE), torch.tensor([[0.1, 0.9, 0.3]], dtype=DOUBLE))

    def paid(objective):
        return objective.nats(world.network, CleanRows(x0, noise=noise, mask=3)).bound

    subs = paid(MDLM(LogLinear(0), steps=10))
    free = paid(MDLM(LogLinear(0), steps=10, zero_masking=False))
    no_copy = paid(MDLM(LogLinear(0), steps=10, carry_over=False))
    d3pm = paid(MDLM(LogLinear(0), steps=10, carry_over=False, zero_masking=False))
    assert torch.allclose(subs, free)
    clean = -world.network(x0, torch.zeros(1), torch.arange(3)).log_softmax(-1)[torch.arange(3), x0[0]]
    assert torch.allclose(no_copy, subs + clean)
    assert torch.allclose(d3pm, paid(D3PM(LogLinear(0), steps=10)))


def test_a_loss_of_three_nats_a_token_is_reported_as_three():
    """Other code divides by the number of masked tokens and reports twice the bound."""
    v, x0 = 21, torch.zeros(4096, 64, dtype=torch.long)
    logits = torch.zeros(v, dtype=DOUBLE)
    logits[0] = torch.log(torch.tensor(19 / (torch.e**3 - 1), dtype=DOUBLE))
    generator = torch.Generator().manual_seed(0)
    t = (torch.arange(4096, dtype=DOUBLE) + 0.5) / 4096
    u = torch.rand(4096, 64, generator=generator, dtype=DOUBLE)
    nats = (
        MDLM(LogLinear(0))
        .nats(lambda x, s, rows: logits.expand(len(rows), -1), CleanRows(x0, noise=Noise(t, u), mask=20))
        .bound
    )
    assert float(nats.mean()) == pytest.approx(3.0, abs=0.02)


def test_gradients_through_masked_rows_equal_gradients_through_all_rows():
    network, x0 = TinyNetwork(), torch.tensor([[0, 2, 1], [1, 1, 0]])
    x_t = torch.tensor([[3, 2, 3], [1, 3, 0]])
    sigma = torch.tensor([0.3, 0.9], dtype=DOUBLE)

    rows_only = cross_entropy(network, x0, x_t, sigma, mask=3).sum()
    ours = torch.autograd.grad(rows_only, list(network.parameters()))
    full = network(x_t, sigma, torch.arange(6)).view(2, 3, 4)
    everywhere = -log_probs(full, x_t, mask=3).gather(-1, x0[..., None]).squeeze(-1)
    theirs = torch.autograd.grad(everywhere.sum(), list(network.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-14)


def test_the_network_is_asked_for_hidden_rows_only():
    world, asked = TableWorld.random(), []

    def network(x_t, sigma, rows):
        asked.append((x_t.flatten()[rows], len(rows)))
        return world.network(x_t, sigma, rows)

    x0, u = torch.tensor([[0, 2, 1], [1, 1, 1]]), torch.tensor([[0.1, 0.9, 0.2], [0.9, 0.9, 0.3]], dtype=DOUBLE)
    MDLM().nats(network, CleanRows(x0, noise=Noise(torch.tensor([0.5, 0.5], dtype=DOUBLE), u), mask=3))
    assert [n for _, n in asked] == [3]
    assert (asked[0][0] == 3).all()


def test_frozen_tokens_are_neither_hidden_nor_paid_for():
    world, x0 = TableWorld.random(), torch.tensor([[0, 2, 1]])
    frozen = torch.tensor([[True, False, True]])
    for objective in (MDLM(), MDLM(steps=5), MDLM(steps=5, carry_over=False), D3PM(steps=5)):
        nats = objective.nats(
            world.network,
            CleanRows(
                x0,
                noise=Noise(torch.tensor([0.9], dtype=DOUBLE), torch.zeros(1, 3, dtype=DOUBLE)),
                mask=3,
                frozen=frozen,
            ),
        ).bound
        assert (nats[frozen] == 0).all()
        assert (nats[~frozen] > 0).all()


def test_rows_come_back_where_they_were():
    x = torch.arange(6).view(2, 3)
    rows = rows_where(x % 2 == 1)
    assert rows.tolist() == [1, 3, 5]
    assert spread(torch.tensor([1.0, 2.0, 3.0]), rows, x).tolist() == [[0, 1, 0], [2, 0, 3]]


def test_nonsense_is_refused():
    world, noise = TableWorld.random(), Noise(torch.tensor([0.5]).double(), torch.zeros(1, 3).double())
    with pytest.raises(UserError, match="at least 1; saw 0"):
        MDLM(steps=0)
    with pytest.raises(UserError, match="give steps"):
        MDLM(carry_over=False)
    with pytest.raises(UserError, match="mask id 3 at row 0, position 2"):
        MDLM().nats(world.network, CleanRows(torch.tensor([[0, 1, 3]]), mask=3, noise=noise))
    with pytest.raises(UserError, match="ids; saw 7"):
        forbid(torch.zeros(2, 4), 7)
    with pytest.raises(UserError, match="token id 5 is outside"):
        row_nats(torch.zeros(1, 4), torch.tensor([5]), mask=3)
    with pytest.raises(Exception, match="b l"):  # jaxtyping names the shape that does not fit
        MDLM().nats(world.network, CleanRows(torch.tensor([[0, 1]]), mask=3, noise=noise))


def test_a_row_without_free_tokens_costs_nothing_and_changes_no_other():
    world, x0 = TableWorld.random(), torch.tensor([[0, 1, 2], [2, 1, 0]])
    noise = Noise(torch.tensor([0.3, 0.6], dtype=DOUBLE), torch.rand(2, 3, dtype=DOUBLE))
    frozen = torch.tensor([[True] * 3, [False] * 3])
    for times in (Count(), Stratified()):
        found = MDLM(times=times).nats(world.network, CleanRows(x0, noise=noise, mask=3, frozen=frozen))
        alone = MDLM(times=times).nats(world.network, CleanRows(x0[1:], noise=noise.rows(slice(1, 2)), mask=3))
        assert (found.bound[0] == 0).all()
        assert torch.equal(found.bound[1:], alone.bound)
