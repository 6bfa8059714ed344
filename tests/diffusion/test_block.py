"""The objective of block diffusion: recorded losses, both ends, and an unbiased bound."""

import json
from functools import partial
from math import comb
from pathlib import Path

import pytest
import torch

from contracts.members import model_of
from model.golden import arrays_of, distance
from model.passes.test_doubled import GOLDEN, SIZES, golden_network, random_network
from unmask.cli.main import main
from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.block import BlockDiffusion, block_times
from unmask.diffusion.blocks import block_nats
from unmask.diffusion.bound import every_mask
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.mdlm import MDLM
from unmask.diffusion.times import Clipped, Count, Stratified
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load
from unmask.model.denoiser import Denoiser
from unmask.model.passes.whole import logits_at
from unmask.random import Noise
from unmask.text.row import Rows
from unmask.training.origin import inherited_sampling

MASK = 6


def text(rows: int, length: int = 12, seed: int = 0):
    return torch.randint(MASK, (rows, length), generator=torch.Generator().manual_seed(seed))


def noise_of(rows: int, length: int = 12, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    return Noise(
        torch.rand(rows, generator=generator, dtype=torch.float64),
        torch.rand(rows, length, generator=generator, dtype=torch.float64),
    )


def exact_by_block(network, x0, size):
    """The bound of each block by every set of masks, one pass for each: Σ_k 1/(k C(n, k)) Σ_|M|=k ce."""
    total = torch.zeros(len(x0), -(-x0.shape[1] // size), dtype=torch.float64)
    for b, first in enumerate(range(0, x0.shape[1], size)):
        n = min(size, x0.shape[1] - first)
        for hidden in every_mask(n):
            x_t = x0.clone()
            x_t[:, first : first + n][:, hidden] = MASK
            k = int(hidden.sum())
            with torch.no_grad():
                paid = block_nats(partial(logits_at, network), x0, x_t, size=size, mask=MASK)
            total[:, b] += paid.sum(1) / (k * comb(n, k))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_losses_are_the_recorded_ones(size):
    cases = arrays_of(GOLDEN / "block_tiny_cases.npz")
    x0, x_t, mask = cases["x0"].long(), cases[f"bs{size}_xt"].long(), int(cases["mask_index"])
    with torch.no_grad():
        nats = block_nats(partial(logits_at, golden_network().freeze()), x0, x_t, size=size, mask=mask)
    assert distance(-nats, cases[f"bs{size}_logp_x0"]) < 1e-4
    loss = nats / cases[f"bs{size}_t"]
    assert distance(loss, cases[f"bs{size}_loss"]) < 1e-4
    assert float(loss[:, 1:].mean()) == pytest.approx(float(cases[f"bs{size}_nll_eval"]), rel=1e-4)


@pytest.mark.slow
def test_blocks_of_one_token_have_the_recorded_likelihood_whatever_the_noise():
    cases = arrays_of(GOLDEN / "block_tiny_cases.npz")
    x0, mask, given = cases["x0"].long(), int(cases["mask_index"]), torch.arange(24).expand(2, -1) < 1
    with torch.no_grad():
        found = [
            BlockDiffusion(size=1)
            .nats(
                partial(logits_at, golden_network().freeze()),
                CleanRows(
                    x0,
                    noise=noise_of(2, 24, seed),
                    mask=mask,
                    frozen=given,
                ),
            )
            .bound
            for seed in (1, 2)
        ]
    assert torch.equal(*found), "no Monte Carlo error"
    assert distance(found[0][:, 1:], cases["bs1_exact_nll"][:, 1:]) < 1e-4


@pytest.mark.parametrize("before", [False, True])
def test_one_block_is_mdlm(before):
    network, x0, noise = random_network(before=before), text(4), noise_of(4)
    with torch.no_grad():
        block, mdlm = (
            objective.nats(partial(logits_at, network), CleanRows(x0, noise=noise, mask=MASK)).bound
            for objective in (BlockDiffusion(size=12), MDLM(times=Count()))
        )
    torch.testing.assert_close(block, mdlm, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_blocks_of_one_token_are_autoregressive_where_the_network_reads_before():
    network, x0 = random_network(before=True), text(4)
    twin = Transformer(Architecture(vocab=7, length=12, width=16, blocks=2, heads=2, causal=True, reads_before=True))
    twin.double().load_state_dict(network.state_dict())
    for weight in ("bound", "flat"):
        found = BlockDiffusion(size=1, weight=weight).nats(
            partial(logits_at, network), CleanRows(x0, noise=noise_of(4), mask=MASK)
        )
        told = Autoregressive().nats(partial(logits_at, twin), CleanRows(x0, mask=MASK))
        for one in (found.loss, found.bound):
            torch.testing.assert_close(one[:, 1:], told.bound[:, 1:], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("times", [Count(), Clipped(), Clipped(low=0.3, high=0.8, floor=0.3), Stratified()], ids=str)
def test_the_bound_is_unbiased_also_with_clipped_noise(times):
    """Times on a fine grid, and orders of the uniforms drawn for each: the mean is the bound by enumeration."""
    network, x0, size, fine = random_network(before=True), text(1, 7), 3, 20_000
    t = (torch.arange(fine, dtype=torch.float64) + 0.5) / fine
    noise = Noise(t, torch.rand(fine, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    with torch.no_grad():
        found = BlockDiffusion(size, times=times).nats(
            partial(logits_at, network), CleanRows(x0.expand(fine, -1), noise=noise, mask=MASK)
        )
    mean = found.bound.mean(0)
    told = exact_by_block(network, x0, size)[0]
    by_block = torch.stack([part.sum() for part in mean.split(size)])
    torch.testing.assert_close(by_block, told, rtol=0.04, atol=0)


@pytest.mark.slow
def test_every_block_of_a_row_has_its_own_share_of_masks():
    t = block_times(torch.rand(5, dtype=torch.float64), 32).sort(1).values
    gaps = t.diff(dim=1)
    assert float(gaps.max()) < 3 / 32, "spread evenly, whatever the row's number is"
    assert float(gaps.min()) > 0.3 / 32


@pytest.mark.slow
def test_a_last_shorter_block_is_the_block_of_a_shorter_text():
    network, x0, noise = random_network(before=True), text(3, 10), noise_of(3, 10)
    with torch.no_grad():
        whole = BlockDiffusion(4).nats(partial(logits_at, network), CleanRows(x0, noise=noise, mask=MASK)).bound
        front = (
            BlockDiffusion(4)
            .nats(partial(logits_at, network), CleanRows(x0[:, :8], noise=Noise(noise.t, noise.u[:, :8]), mask=MASK))
            .bound
        )
    torch.testing.assert_close(whole[:, :8], front, rtol=1e-9, atol=1e-9)
    assert (whole[:, 8:].sum(1) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("length", [2, 4, 7])
def test_a_row_cut_to_a_random_length_is_the_shorter_text(before, length):
    """`--text.lengths random`: neither half sees what was cut off, and it costs nothing."""
    network, x0, noise = random_network(before=before), text(2), noise_of(2)
    denoiser = Denoiser(network, BlockDiffusion(4))
    real = torch.arange(12) < torch.tensor([[length], [12]])
    rows = Rows.of(x0, real)
    frozen, lengths = rows.frozen, rows.lengths
    found, _ = denoiser(x0, noise, mask=MASK, frozen=frozen, lengths=lengths)
    short, _ = denoiser(x0[:1, :length], Noise(noise.t[:1], noise.u[:1, :length]), mask=MASK)
    torch.testing.assert_close(found.bound[:1, :length], short.bound, rtol=1e-9, atol=1e-9)
    assert (found.bound[0, length:] == 0).all()
    found.loss.sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in network.parameters())


@pytest.mark.slow
def test_an_interval_that_ends_near_0_or_1_is_treated_as_any_other():
    """The original tests for equality with 0.001 and 1, so 0.001 in float32 is another interval there."""
    even = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    told = Clipped(low=0.001, high=1.0).at(even)
    for low, high in ((float(torch.tensor(0.001)), 1.0), (0.0011, 0.9999)):
        found = Clipped(low=low, high=high).at(even)
        torch.testing.assert_close(found.t, told.t, rtol=0, atol=2e-4)
        torch.testing.assert_close(found.density, told.density, rtol=0, atol=1e-3)
    whole = Clipped(low=0.0, high=1.0).at(even)
    torch.testing.assert_close(whole.density, torch.ones_like(even))


@pytest.mark.slow
def test_given_tokens_stay_visible_and_make_a_block_smaller():
    """A prompt that ends within a block: its tokens cost nothing, and k is uniform over the others."""
    network, x0 = random_network(before=True), text(2)
    frozen = torch.arange(12).expand(2, -1) < 6
    noise = Noise(torch.tensor([0.0, 0.999], dtype=torch.float64), noise_of(2).u)
    with torch.no_grad():
        found = (
            BlockDiffusion(4, weight="bound")
            .nats(partial(logits_at, network), CleanRows(x0, noise=noise, mask=MASK, frozen=frozen))
            .bound
        )
    assert (found[frozen] == 0).all()
    assert ((found[:, 6:8] > 0).sum(1) <= 2).all()
    nothing = BlockDiffusion(4).nats(
        partial(logits_at, network), CleanRows(x0, noise=noise, mask=MASK, frozen=torch.ones_like(frozen))
    )
    assert (nothing.bound == 0).all()


@pytest.mark.slow
def test_clipped_noise_draws_mostly_within_and_always_all():
    even = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    when = Clipped(low=0.45, high=0.95, floor=0.1).at(even)
    within = (when.t >= 0.45) & (when.t <= 0.95)
    assert float(within.double().mean()) == pytest.approx(0.95, abs=0.01)
    assert float((1 / when.density).mean()) == pytest.approx(1, abs=0.01), "∫ density · 1/density = 1"
    assert float((when.t < 0.45).double().mean()) > 0.04


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: BlockDiffusion(0), "at least one token"),
        (lambda: BlockDiffusion(16).remark(12), "does not fit into rows of 12"),
        (lambda: Clipped(low=0.9, high=0.2), "low < high"),
        (lambda: Clipped(floor=0), "miss in the bound"),
    ],
)
def test_wrong_settings_are_refused(make, match):
    with pytest.raises(UserError, match=match):
        make()


@pytest.mark.slow
def test_the_command_line_trains_tunes_measures_and_samples(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(
        "\n\n".join(f"The {n} cat sat on mat {n}. It was {n % 7} and sad." for n in range(200))
    )
    small = ["--data", "text.txt", "--tokenizer", "byte", "--length", "16", "--pack", "stream", "--optim.batch", "4"]
    small += ["--model.width", "16", "--model.blocks", "1", "--model.heads", "2", "--run.preview-minutes", "0"]
    small += ["--run.eval-rows", "4"]

    def unmask(*words):
        code, seen = main(list(words)), capsys.readouterr()
        assert code == 0, seen
        return seen.err if words[0] == "train" else seen.out

    block = ["--objective.name", "block", "--objective.size", "4"]
    told = unmask("train", *small, "--out", "block", *block, "--steps", "6", "--text.lengths", "random")
    assert "done: 6 steps" in told
    assert "end with a block" not in told
    unmask("train", *small, "--out", "mdlm", "--steps", "4")
    tuned = ["--objective.times", "clipped:low=0.3,high=0.8", "--objective.weight", "bound", "--init", "mdlm"]
    unmask("train", *small, "--out", "tuned", *block, *tuned, "--steps", "3")
    assert load("tuned/last").objective == BlockDiffusion(4, Clipped(0.3, 0.8))
    assert load("tuned/last").spec.reads_before, "the warm start of the first run is kept"
    unmask("train", *small, "--out", "ar", "--objective.name", "ar", "--steps", "3")
    odd = ["--objective.name", "block", "--objective.size", "5", "--steps", "1"]
    for source in ("ar", "block"):
        told = unmask("train", *small, "--out", f"from-{source}", *odd, "--init", source)
        assert "rows of 16 tokens end with a block of 1" in told
        assert load(f"from-{source}/last").objective.size == 5
        assert not load(f"from-{source}/last").spec.causal
    found = {
        name: json.loads(unmask("evaluate", "block", "text.txt", "--rows", "6", "--estimator", name, "--json"))
        for name in ("auto", "exact-bound", "likelihood")
    }
    assert found["auto"]["estimator"] == "block"
    assert found["auto"]["standard_error"] > 0
    assert found["exact-bound"]["standard_error"] == found["likelihood"]["standard_error"] == 0
    assert found["likelihood"]["nats_per_token"] <= found["exact-bound"]["nats_per_token"]
    assert not found["exact-bound"]["exact"]
    assert found["likelihood"]["exact"]
    off = found["auto"]["nats_per_token"] - found["exact-bound"]["nats_per_token"]
    assert abs(off) < 5 * found["auto"]["standard_error"]
    lines = unmask("sample", "block", "--prompt", "The ", "--length", "50", "--json", "--sampler", "threshold")
    assert json.loads(lines)["law"].endswith("in blocks of 4 tokens, each given the 12 tokens before it")
    assert main(["evaluate", "block", "text.txt", "--estimator", "duel"]) == 2
    assert "Known: block, exact-bound, likelihood" in capsys.readouterr().err
    wide = ["--objective.name", "block", "--objective.size", "16", "--steps", "1", "--init", "block"]
    unmask("train", *small, "--out", "wide", *wide)
    assert main(["evaluate", "wide", "text.txt", "--estimator", "likelihood"]) == 2
    assert "2^16 - 1 = 65,535 forward passes" in capsys.readouterr().err
    assert main(["train", *small, "--out", "x", "--objective.name", "block", "--objective.size", "17"]) == 2
    assert "does not fit into rows of 16" in capsys.readouterr().err
    mamba = ["--model.name", "mamba", "--objective.name", "block"]
    assert main(["train", "--data", "text.txt", "--out", "y", *mamba]) == 2
    assert "cannot look block by block" in capsys.readouterr().err


@pytest.mark.slow
def test_settings_for_another_process_are_not_inherited(tmp_path):
    """Those of a masked model were chosen for whole texts; a block model begins with its own, exact sampler."""
    sampling = {"sampler": "entropy", "top_p": 0.75}
    for name in ("mdlm", "block"):
        model = model_of(tmp_path / name, name, sampling=sampling)
        for objective in (MDLM(), BlockDiffusion()):
            kept = inherited_sampling(model, objective)
            assert kept == (sampling if objective.name == name else {})
