"""Every kernel by enumeration: the forward process is a Markov chain from text to prior, a step is Bayes' rule."""

from itertools import product

import pytest
import torch

from contracts.members import NAMES
from exact import DOUBLE, chi_square_p
from sampling.laws import last
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.kernel import KERNELS, Kernel, KernelStep
from unmask.diffusion.schedule import Cosine
from unmask.random import Noise
from unmask.registry import derived_fields, own_fields
from unmask.sampling.policies.uniform import UniformSteps
from unmask.sampling.process import run
from unmask.sampling.uniform import UniformProcess
from unmask.text.prompt.canvas import blank, of_tokens

CELLS = 200_000  # uniforms of a marginal
WORLDS = [(3, 2), (3, 0), (5, 4), (5, 2)]  # ids, and which is the mask: two letters, and four
pytestmark = pytest.mark.parametrize("name", NAMES["kernels"])


def kernel_of(name: str, vocab: int) -> Kernel:
    """A kernel for so many ids, with another schedule than its own, and every id by itself where it can."""
    entry = KERNELS.entry(name)
    known = {"vocab": vocab, "shift": torch.linspace(-1, 1, vocab, dtype=DOUBLE)}
    values = {field: known[field] for field in derived_fields(entry.kind)}
    return entry.make(**values, **({"schedule": Cosine(eps=0)} if "schedule" in own_fields(entry.kind) else {}))


def letters_of(vocab: int, mask: int) -> list[int]:
    return [v for v in range(vocab) if v != mask]


def uniforms() -> torch.Tensor:
    return ((torch.arange(CELLS, dtype=DOUBLE) + 0.5) / CELLS)[None]


def marginal(kernel: Kernel, x0: int, t: float, vocab: int, mask: int) -> torch.Tensor:
    """q(x_t | x_0) by all uniforms."""
    at = torch.tensor([t], dtype=DOUBLE)
    x_t = kernel.forward(CleanRows(torch.full((1, CELLS), x0), Noise(at, uniforms()), mask=mask), at)
    return torch.bincount(x_t[0], minlength=vocab) / CELLS


def stepped(kernel: Kernel, log_p: torch.Tensor, s: float, t: float, vocab: int, mask: int) -> torch.Tensor:
    """p(x_s | x_t) for every x_t (rows) and x_s (columns)."""
    times = (torch.full((vocab,), one, dtype=DOUBLE) for one in (s, t))
    return kernel.log_step(log_p.expand(vocab, -1), KernelStep(torch.arange(vocab), *times, mask)).exp()


def known(x0: int, vocab: int) -> torch.Tensor:
    return torch.full((vocab,), -torch.inf, dtype=DOUBLE).index_fill(0, torch.tensor([x0]), 0.0)


def posteriors(kernel: Kernel, s: float, t: float, vocab: int, mask: int) -> dict[int, torch.Tensor]:
    """q(x_s, x_t | x_0) (x_t, x_s) for every letter x_0, from the marginal and the step of a known x_0."""
    joint = {}
    for x0 in letters_of(vocab, mask):
        at = marginal(kernel, x0, t, vocab, mask)
        joint[x0] = torch.where(
            at[:, None] > 0, at[:, None] * stepped(kernel, known(x0, vocab), s, t, vocab, mask), 0
        )
    return joint


@pytest.mark.parametrize(("vocab", "mask"), WORLDS)
def test_text_is_clean_at_0_and_the_prior_at_1_and_frozen_tokens_stay(name, vocab, mask):
    kernel = kernel_of(name, vocab)
    prior = torch.bincount(kernel.prior(uniforms()[0], mask=mask), minlength=vocab) / CELLS
    for x0 in letters_of(vocab, mask):
        assert marginal(kernel, x0, 0.0, vocab, mask)[x0] == 1
        assert torch.allclose(marginal(kernel, x0, 1.0, vocab, mask), prior, atol=1e-4)
    x0 = torch.tensor([letters_of(vocab, mask)])
    frozen = torch.arange(x0.shape[1])[None] % 2 == 0
    noise = Noise(torch.ones(1), torch.zeros(1, x0.shape[1]))
    x_1 = kernel.forward(CleanRows(x0, noise, mask=mask, frozen=frozen), noise.t)
    assert torch.equal(x_1[frozen], x0[frozen])
    drawn = kernel.prior(torch.zeros(1, x0.shape[1]), mask=mask)
    assert torch.equal(x_1[~frozen], drawn[~frozen])


@pytest.mark.parametrize(("s", "t"), [(0.3, 0.7), (0.5, 1.0), (0.0, 0.4)])
@pytest.mark.parametrize(("vocab", "mask"), WORLDS)
def test_posterior_times_marginal_is_a_markov_chain_from_s_to_t(name, vocab, mask, s, t):
    """Summed over x_t it is the marginal at s; divided by that, q(x_t | x_s), a row of which adds up to one and does
    not depend on x_0: so the posterior is Bayes' rule, and two steps of the forward process are one."""
    kernel, steps = kernel_of(name, vocab), {}
    for x0, joint in posteriors(kernel, s, t, vocab, mask).items():
        before = marginal(kernel, x0, s, vocab, mask)
        assert torch.allclose(joint.sum(0), before.double(), atol=1e-4)
        for x_s in torch.nonzero(before > 1e-3).flatten().tolist():
            row = joint[:, x_s] / before[x_s]
            assert float(row.sum()) == pytest.approx(1, abs=1e-3)
            steps.setdefault(x_s, []).append(row)
    for rows in steps.values():
        for row in rows:
            assert torch.allclose(row, rows[0], atol=1e-3)


@pytest.mark.parametrize(("vocab", "mask"), WORLDS)
def test_the_reverse_step_of_a_prediction_is_bayes_rule_and_its_kl_is_enumerated(name, vocab, mask):
    kernel, (s, t) = kernel_of(name, vocab), (0.3, 0.7)
    letters = letters_of(vocab, mask)
    p = torch.zeros(vocab, dtype=DOUBLE)
    p[letters] = torch.randn(len(letters), generator=torch.Generator().manual_seed(4), dtype=DOUBLE).softmax(0)
    step, joint = stepped(kernel, p.log(), s, t, vocab, mask), posteriors(kernel, s, t, vocab, mask)
    at = torch.stack([marginal(kernel, v, t, vocab, mask) for v in letters])  # (x_0, x_t)
    for x_t in torch.nonzero(at.amin(0) > 0).flatten().tolist():  # what every text may become
        assert float(step[x_t].sum()) == pytest.approx(1)
        ways = []
        for weight in (lambda v: p[v] / at[letters.index(v), x_t], lambda v: p[v]):  # noqa: B023
            mixed = sum(weight(v) * joint[v][x_t] for v in letters)
            ways.append(mixed / mixed.sum())
        assert any(torch.allclose(step[x_t], way, atol=1e-3) for way in ways), (step[x_t], ways)
        for x0 in letters:
            q = stepped(kernel, known(x0, vocab), s, t, vocab, mask)[x_t]
            explicit = torch.where(q > 0, q * (q / step[x_t]).log(), 0.0).sum()
            times = (torch.tensor([one], dtype=DOUBLE) for one in (s, t))
            found = kernel.kl(p.log()[None], torch.tensor([x0]), KernelStep(torch.tensor([x_t]), *times, mask))
            assert float(found) == pytest.approx(float(explicit), abs=1e-9)


def test_a_process_that_holds_it_draws_the_enumerated_law_and_leaves_given_text(name):
    """Two positions of two letters, three steps; a random network, which sees masks where there are any."""
    kernel, mask, total = kernel_of(name, 3), 2, 3
    states = torch.tensor(list(product(range(3), repeat=2)))
    table = torch.randn(9, 2, 3, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    network = lambda x, sigma, rows: table[x[:, 0] * 3 + x[:, 1]].flatten(0, 1)[rows]  # noqa: E731
    log_p = table.index_fill(-1, torch.tensor([mask]), -torch.inf).log_softmax(-1)
    start = torch.bincount(kernel.prior(uniforms()[0], mask=mask), minlength=3).double() / CELLS
    law = start[states[:, 0]] * start[states[:, 1]]
    for i in range(total, 0, -1):
        times = (torch.full((18,), j / total, dtype=DOUBLE) for j in (i - 1, i))
        one = kernel.log_step(log_p.flatten(0, 1), KernelStep(states.flatten(), *times, mask)).exp().view(9, 2, 3)
        law = torch.einsum("n,na->a", law, one[:, 0, states[:, 0]] * one[:, 1, states[:, 1]])
    told = {tuple(x): p for x, p in zip(states.tolist(), law.tolist(), strict=True) if p > 1e-9}
    assert sum(told.values()) == pytest.approx(1)
    assert all(mask not in text for text in told)
    process = UniformProcess(kernel, UniformSteps(total))
    end = last(run(process, network, blank(20_000, 2, mask=mask), seed=3)).canvas.tokens
    assert chi_square_p(told, end) > 1e-4
    given = last(run(process, network, of_tokens(torch.tensor([[1, mask]] * 50), mask=mask), seed=1)).canvas.tokens
    assert (given[:, 0] == 1).all()
    assert (given != mask).all()
