"""D3PM's two kernels: the recorded posteriors, explicit matrices, bounds by enumeration, and the hybrid loss."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from exact import DOUBLE, TableWorld, every_text
from model.golden import FOLDER, arrays_of
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.d3pm import D3PM, reconstruction
from unmask.diffusion.d3pm_uniform import D3PMUniform
from unmask.diffusion.kernel import KernelStep
from unmask.diffusion.kernels.uniform import First, Uniform, random_ids, rate_nats, replace_tokens
from unmask.diffusion.mlm import Ids
from unmask.diffusion.schedule import Cosine, LogLinear, complete
from unmask.diffusion.times import Cubed, Stratified, stratified_times
from unmask.errors import UserError
from unmask.evaluation.likelihood.error_bars import interval, monte_carlo
from unmask.evaluation.likelihood.estimators import estimator
from unmask.random import Noise

K, MASK = 3, 3  # ids of the tables below; the mask is the last


def uniform(vocab: int, first: First = "bayes") -> Uniform:
    """The kernel whose time is the share that is replaced: 1 − α."""
    return Uniform(LogLinear(eps=0), vocab, first)


def kernel(alpha: float) -> torch.Tensor:
    return alpha * torch.eye(K, dtype=DOUBLE) + (1 - alpha) / K


@pytest.mark.parametrize("first", ["bayes", "austin"])
@pytest.mark.parametrize("a_s, a_t", [(0.7, 0.4), (0.3, 0.0), (1.0, 0.9), (1.0, 0.0)])
def test_a_step_is_the_explicit_posterior_and_its_kl(a_s, a_t, first):
    """p ∝ q(x_t | x_s) Σ_v q(x_s | v) p_v, with K × K matrices; at s = 0 too, or there the prediction itself."""
    p = torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE)
    s, t = (1 - torch.tensor([one], dtype=DOUBLE) for one in (a_s, a_t))
    log_p = torch.cat((p.log(), torch.tensor([-torch.inf], dtype=DOUBLE)))[None]
    for x_t in range(K):
        explicit = kernel(a_t / a_s)[:, x_t] * (p @ kernel(a_s))
        explicit = p if a_s == 1 and first == "austin" else explicit / explicit.sum()
        found = uniform(K + 1, first).log_step(log_p, KernelStep(torch.tensor([x_t]), s, t, MASK)).exp()[0]
        assert torch.allclose(found[:K], explicit)
        assert found[MASK] == 0
        for x0 in range(K):
            q = kernel(a_t / a_s)[:, x_t] * kernel(a_s)[x0]
            q = q / q.sum()
            kl = torch.where(q > 0, q * (q / explicit).log(), 0.0).sum()
            ours = uniform(K + 1, first).kl(log_p, torch.tensor([x0]), KernelStep(torch.tensor([x_t]), s, t, MASK))
            assert float(ours) == pytest.approx(float(kl), abs=1e-12)


def test_the_steps_of_a_schedule_multiply_to_its_marginal_and_uniforms_give_it():
    times = torch.linspace(0, 1, 6, dtype=DOUBLE)
    alpha = complete(Cosine(), times).alpha
    product = torch.eye(K, dtype=DOUBLE)
    for s, t in pairwise(alpha):
        product = product @ kernel(float(t / s))
        assert torch.allclose(product, kernel(float(t)))
    assert float(alpha[-1]) == pytest.approx(0)
    u = (torch.arange(30_000, dtype=DOUBLE) + 0.5)[None] / 30_000
    x_t = replace_tokens(
        torch.ones(1, 30_000, dtype=torch.long), torch.tensor([0.6], dtype=DOUBLE), u, vocab=4, mask=MASK
    )
    assert torch.allclose(torch.bincount(x_t[0], minlength=4) / 30_000, torch.tensor([0.2, 0.6, 0.2, 0.0]), atol=1e-3)
    assert sorted({*random_ids(u[0], vocab=5, mask=2).tolist()}) == [0, 1, 3, 4]


@pytest.mark.slow
def test_posteriors_and_losses_are_the_recorded_ones():
    """The recording adds 1e-6 inside every logarithm: without that, probabilities agree to about 1e-4."""
    case = arrays_of(FOLDER / "baselines" / "d3pm_uniform_cases.npz")
    total, letters = int(case["T"]), case["q_one"].shape[-1]
    alpha = torch.cumprod(1 - case["beta"].double(), 0)
    # Row = from; the recording's kernel replaces with probability beta by any letter, the same one included.
    assert torch.allclose(case["q_cum"][:, 0, 0].double(), alpha + (1 - alpha) / letters, atol=1e-5)
    x = case["embed"][case["xt"]]
    time = (torch.arange(1, total + 1) / total).view(total, 1, 1, 1)
    mixed = x @ case["net_A"] + x.mean(2, keepdim=True) @ case["net_C"] + time * case["net_w"]
    logits = torch.tanh(mixed) @ case["net_B"]
    assert torch.allclose(logits, case["x0_logits"], atol=1e-5)
    wide = torch.cat((logits, torch.full((*logits.shape[:-1], 1), -torch.inf)), -1).double()  # our mask, never used
    for i in range(1, total):
        n = case["x0"].numel()
        t, s = (1 - alpha[j].expand(n) for j in (i, i - 1))
        x_t, log_p = case["xt"][i].flatten(), wide[i].flatten(0, 1).log_softmax(-1)
        p = uniform(letters + 1).log_step(log_p, KernelStep(x_t, s, t, letters)).exp()[:, :letters]
        told = case["p_logp"][i].flatten(0, 1).double().softmax(-1)
        assert torch.allclose(p, told, atol=2e-4)
        with_eps = (case["q_one"][i].double()[:, x_t].T + 1e-6) * (
            log_p.exp()[:, :letters] @ case["q_cum"][i - 1].double() + 1e-6
        )
        assert torch.allclose(with_eps / with_eps.sum(-1, keepdim=True), told, atol=3e-6)
        kl = uniform(letters + 1).kl(log_p, case["x0"].flatten(), KernelStep(x_t, s, t, letters))
        assert torch.allclose(kl, case["kl"][i].flatten().double(), rtol=2e-3, atol=2e-4)


def enumerated(world: TableWorld, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The bound of every text of two letters over two ids, every x_t and step enumerated; and the sampler's law."""
    texts = every_text(2, 2)
    alpha = torch.linspace(1, 0, total + 1, dtype=DOUBLE)
    size = len(texts)

    def kernels(a):
        one = a * torch.eye(2, dtype=DOUBLE) + (1 - a) / 2
        return torch.stack([one[x[0]][texts[:, 0]] * one[x[1]][texts[:, 1]] for x in texts])  # (from, to)

    logits = torch.stack([world.network(texts, torch.zeros(size), torch.arange(2 * size))]).view(size, 2, -1)
    log_p = torch.cat((logits[..., :2].log_softmax(-1), torch.full((size, 2, 1), -torch.inf, dtype=DOUBLE)), -1)
    bound, law = torch.zeros(size, dtype=DOUBLE), torch.full((size,), 1 / size, dtype=DOUBLE)
    for i in range(total, 0, -1):
        t, s = (1 - alpha[j].expand(2 * size) for j in (i, i - 1))
        step = uniform(3).log_step(log_p.flatten(0, 1), KernelStep(texts.flatten(), s, t, 2)).view(size, 2, -1).exp()
        move = torch.stack([[x[0, y[0]] * x[1, y[1]] for y in texts][k] for x in step for k in range(size)])
        law = law @ move.view(size, size)
        at = kernels(alpha[i])
        for number, x0 in enumerate(texts):
            kl = (
                uniform(3)
                .kl(log_p.flatten(0, 1), x0.repeat(size), KernelStep(texts.flatten(), s, t, 2))
                .view(size, 2)
            )
            bound[number] += (at[number][:, None] * kl).sum()
    return bound, law


class Pairs:
    """A random answer for each of the four texts of two letters: ids 0 and 1, the mask 2."""

    def __init__(self, seed: int) -> None:
        self.table = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)

    def network(self, x_t, sigma, rows):
        return self.table[x_t[:, 0] * 2 + x_t[:, 1]].flatten(0, 1)[rows]


@pytest.mark.parametrize("total", [1, 4])
def test_the_bound_is_the_enumerated_one_and_a_bound(total):
    world = Pairs(1)
    bound, law = enumerated(world, total)
    assert float(law.sum()) == pytest.approx(1)
    assert (bound >= -law.log() - 1e-9).all()
    assert float((-bound).exp().sum()) <= 1
    cells = 40  # of the uniforms: 1 − α is a multiple of 1/T, and two letters halve it
    u = (torch.arange(cells, dtype=DOUBLE) + 0.5) / cells
    grid = torch.cartesian_prod(u, u)
    objective = D3PMUniform(LogLinear(eps=0), steps=total)
    for number, x0 in enumerate(every_text(2, 2)):
        paid = 0.0
        for i in range(total):
            noise = Noise(torch.full((len(grid),), (i + 0.5) / total, dtype=DOUBLE), grid)
            found = objective.nats(
                world.network, CleanRows(x0.repeat(len(grid), 1), noise=noise, mask=2, parts={"ids": Ids(3)})
            )
            paid += float(found.bound.sum(1).mean()) / total
        assert paid == pytest.approx(float(bound[number]), rel=1e-9)


def test_the_bound_falls_to_the_entropy_for_a_network_that_knows_the_others():
    """T steps, p(x_0^i | all others in x_t) exact, every x_t enumerated. D3PM's own first step pays again."""
    texts, total = every_text(2, 2), 64
    joint = torch.tensor([[0.55, 0.05], [0.1, 0.3]], dtype=DOUBLE)
    found = {"bayes": 0.0, "austin": 0.0}
    for i in range(1, total + 1):
        s, t = (torch.full((2,), j / total, dtype=DOUBLE) for j in (i - 1, i))
        q = (1 - t[0]) * torch.eye(2, dtype=DOUBLE) + t[0] / 2
        for x_t in texts:
            others = [joint @ q[:, x_t[1]], q[:, x_t[0]] @ joint]
            log_p = torch.stack(
                [torch.cat(((one / one.sum()).log(), one.new_tensor([-torch.inf]))) for one in others]
            )
            for x0, chance in zip(texts, joint.flatten(), strict=True):
                reached = float(chance * q[x0[0], x_t[0]] * q[x0[1], x_t[1]])
                for first in found:
                    found[first] += reached * float(uniform(3, first).kl(log_p, x0, KernelStep(x_t, s, t, 2)).sum())
    entropy = float(-(joint * joint.log()).sum())
    assert entropy < found["bayes"] < entropy + 0.02
    left = 2 * entropy + float(sum((joint.sum(i) * joint.sum(i).log()).sum() for i in (0, 1)))  # Σ H(x_i | other)
    assert found["austin"] - found["bayes"] == pytest.approx(left, abs=0.1)


@pytest.mark.parametrize("objective", [D3PM(steps=6), D3PMUniform(steps=6)], ids=lambda one: one.name)
def test_the_hybrid_loss_adds_the_cross_entropy_at_all_positions_and_leaves_the_bound(objective):
    world = TableWorld.random()
    x0 = torch.tensor([[0, 2, 1], [1, 1, 0]])
    noise = Noise(torch.tensor([0.4, 0.9], dtype=DOUBLE), torch.rand(2, 3, dtype=DOUBLE))
    options = {"noise": noise, "mask": MASK, "parts": {"ids": Ids(4)}}
    plain = objective.nats(world.network, CleanRows(x0, **options))
    hybrid = replace(objective, hybrid=0.01).nats(world.network, CleanRows(x0, **options))
    assert torch.allclose(hybrid.bound, plain.bound)
    assert torch.equal(plain.loss, plain.bound)
    added = (hybrid.loss - plain.loss) / (6 * 0.01)
    assert (added > 0).all()  # at visible positions too
    level_t = objective.schedule.at(torch.tensor([0.5, 1.0], dtype=DOUBLE))
    if objective.name == "d3pm":
        x_t = torch.where(noise.u < level_t.hidden[:, None], MASK, x0)
        log_p = world.network(x_t, torch.zeros(2), torch.arange(6)).log_softmax(-1)
        assert torch.allclose(added, -log_p.gather(-1, x0.flatten()[:, None]).view(2, 3))
    with pytest.raises(UserError, match="hybrid"):
        replace(objective, hybrid=-1)


def test_austin_s_bound_is_the_reference_s_without_the_reconstruction_and_both_have_a_name():
    world = TableWorld.random()
    x0, mask = torch.tensor([[0, 2, 1]]), MASK
    t, u = torch.tensor([0.55], dtype=DOUBLE), torch.tensor([[0.1, 0.9, 0.3]], dtype=DOUBLE)
    frozen = torch.zeros(1, 3, dtype=torch.bool)
    found = {}
    for name in ("austin", "reference", "d3pm"):
        one = estimator(name, objective=D3PM(steps=10))
        found[name] = one.nats(world.network, CleanRows(x0, noise=Noise(t, u), mask=mask, frozen=frozen))
        assert ("Austin" if name == "austin" else "reference") in one.means
    clean = reconstruction(world.network, CleanRows(x0, Noise(t, u), mask=mask), zero_masking=False)
    assert torch.equal(found["d3pm"], found["reference"])
    assert torch.allclose(found["reference"] - found["austin"], clean, atol=1e-12)
    assert torch.equal(
        D3PM(steps=10, bound="austin").nats(world.network, CleanRows(x0, noise=Noise(t, u), mask=mask)).loss,
        found["austin"],
    )


def test_both_first_steps_of_a_uniform_kernel_have_a_name():
    world, x0 = TableWorld.random(), torch.tensor([[0, 2, 1]])
    noise = Noise(torch.tensor([0.05], dtype=DOUBLE), torch.tensor([[0.1, 0.9, 0.3]], dtype=DOUBLE))
    clean, found = CleanRows(x0, noise=noise, mask=MASK, parts={"ids": Ids(4)}), {}
    for name in ("d3pm-uniform", "bayes", "austin"):
        one = estimator(name, objective=D3PMUniform(steps=10), parts={"ids": Ids(4)})
        found[name] = one.nats(world.network, clean)
        assert ("Austin" in one.means) == (name == "austin")
    assert torch.equal(found["d3pm-uniform"], found["bayes"])
    assert not torch.allclose(found["bayes"], found["austin"])
    with pytest.raises(UserError, match="austin"):
        estimator("austin", objective=D3PMUniform(continuous=True))


class Guess:
    """Believes that a token is right, as the process leaves it, and has no idea what a wrong one was."""

    letters = 9

    def network(self, x_t, sigma, rows):
        wrong = -torch.expm1(-sigma.double())[:, None].expand(x_t.shape).flatten()[rows] * 0.5
        table = (wrong / self.letters).clamp(min=1e-12).log()[:, None].repeat(1, self.letters + 1)
        return table.scatter(1, x_t.flatten()[rows][:, None], torch.log1p(-wrong)[:, None])


@pytest.mark.slow
def test_intervals_of_few_rows_cover_the_bound_of_a_uniform_kernel():
    """128 rows of 64 tokens, one pass. Drawn evenly, the first of 1,000 steps is in one of eight such estimates."""
    objective, world = D3PMUniform(steps=1000).precise(), Guess()
    options = {"mask": world.letters, "parts": {"ids": Ids(world.letters + 1)}}

    def estimated(rows, length, seed, one=objective):
        source = torch.Generator().manual_seed(seed)
        t = stratified_times(torch.rand(rows, generator=source, dtype=DOUBLE))
        noise = Noise(t, torch.rand(rows, length, generator=source, dtype=DOUBLE))
        x0 = torch.zeros(rows, length, dtype=torch.long)
        return one.nats(world.network, CleanRows(x0, noise=noise, **options)).bound.sum(1).numpy()[None], t.numpy()[
            None
        ]

    def error_of(one):
        means, errors, inside = [], [], []
        for seed in range(1, 76):
            nats, t = estimated(128, 64, seed, one)
            error, freedom = monte_carlo(nats, np.full_like(nats, 64), t)
            low, high = interval(nats.mean() / 64, error, freedom)
            means.append(nats.mean() / 64)
            errors.append(error)
            inside.append(low < expected < high)
        return np.std(means), np.sqrt(np.mean(np.square(errors))), np.mean(inside)

    expected = float(estimated(100_000, 8, 0)[0].mean() / 8)
    spread, printed, covered = error_of(objective)
    assert 0.85 < printed / spread < 1.3
    assert covered >= 0.91
    even = D3PMUniform(steps=1000)
    assert error_of(even)[0] > 2 * spread, "the error of steps drawn evenly"


def test_the_rates_of_continuous_time_are_the_limit_of_short_steps():
    p = torch.tensor([[0.2, 0.5, 0.3]], dtype=DOUBLE)
    log_p = torch.cat((p.log(), torch.tensor([[-torch.inf]], dtype=DOUBLE)), 1)
    t, step = torch.tensor([0.6], dtype=DOUBLE), 1e-6
    for x_t, x0 in every_text(K, 2):
        found = rate_nats(log_p, x0[None], x_t[None], LogLinear(eps=0).at(t))
        kl = uniform(K + 1).kl(log_p, x0[None], KernelStep(x_t[None], t - step, t, MASK))
        assert float(found) == pytest.approx(float(kl) / step, rel=1e-4)


def test_the_bound_in_continuous_time_is_tight_for_a_network_that_knows_the_others():
    """E over texts of the bound is the entropy, if p(x_0^i | all others in x_t) is exact; every x_t enumerated."""
    texts, generator = every_text(2, 2), torch.Generator().manual_seed(4)
    p = torch.rand(4, generator=generator, dtype=DOUBLE)
    joint = (p / p.sum()).view(2, 2)
    points, weights = np.polynomial.legendre.leggauss(60)
    total = 0.0
    for point, weight in zip(points, weights, strict=True):
        t = torch.tensor([(point + 1) / 2], dtype=DOUBLE)
        q = (1 - t) * torch.eye(2, dtype=DOUBLE) + t / 2
        for x0, chance in zip(texts, joint.flatten(), strict=True):
            for x_t in texts:
                reached = chance * q[x0[0], x_t[0]] * q[x0[1], x_t[1]]
                exact = [joint @ q[:, x_t[1]], q[:, x_t[0]] @ joint]
                log_p = torch.stack(
                    [torch.cat(((one / one.sum()).log(), t.new_tensor([-torch.inf]))) for one in exact]
                )
                nats = rate_nats(log_p, x0, x_t, LogLinear(eps=0).at(t.expand(2)))
                total += float(weight / 2 * reached * nats.sum())
    assert total == pytest.approx(float(-(joint * joint.log()).sum()), rel=1e-3)


@pytest.mark.parametrize("times", [Stratified(), Cubed()])
def test_the_bound_in_continuous_time_is_the_integral_of_the_rates(times):
    world, texts, x0 = TableWorld.random(), every_text(3, 3), torch.tensor([2, 0, 1])
    logits = world.network(texts, torch.zeros(27), torch.arange(81))
    log_p = logits.index_fill(-1, torch.tensor([MASK]), -torch.inf).log_softmax(-1)
    points, weights = np.polynomial.legendre.leggauss(40)
    integral = 0.0
    for point, weight in zip(points, weights, strict=True):
        t = torch.tensor([(point + 1) / 2], dtype=DOUBLE)
        reached = kernel(float(1 - t))[x0, texts].prod(1)
        nats = rate_nats(log_p, x0.repeat(27), texts.flatten(), LogLinear(eps=0).at(t.expand(81)))
        integral += float(weight / 2 * (reached * nats.view(27, 3).sum(1)).sum())
    generator, rows = torch.Generator().manual_seed(0), 1 << 15
    t, u = (torch.rand(rows, *more, dtype=DOUBLE, generator=generator) for more in ((), (3,)))
    objective = D3PMUniform(schedule=LogLinear(eps=0), continuous=True, times=times)
    clean = CleanRows(
        x0.expand(rows, -1), noise=Noise(stratified_times(t), u), mask=MASK, parts=objective.parts(vocab=4, width=1)
    )
    found = objective.nats(world.network, clean).bound.sum(1)
    assert float(found.mean()) == pytest.approx(integral, rel=0.03)
    assert objective.means == "upper bound on -log p, uniform diffusion in continuous time"


def test_rates_are_accurate_where_nearly_all_or_nothing_is_noise():
    nearly = torch.tensor([1e-9, 1 - 1e-9], dtype=DOUBLE)
    log_p = torch.full((2, 1001), -torch.inf).index_fill(1, torch.arange(1000), 0.0).log_softmax(-1)
    nats = rate_nats(log_p, torch.tensor([3, 3]), torch.tensor([3, 4]), LogLinear(eps=0).at(nearly))
    assert nats.isfinite().all()
    assert float(nats[1]) == pytest.approx(0, abs=1e-3)
