"""Exact numbers of block diffusion: recorded ones, enumeration of texts, and what they are to each other."""

from functools import partial

import pytest
import torch

from diffusion.test_block import MASK, exact_by_block, noise_of, text
from exact import every_text
from model.golden import arrays_of, distance
from model.passes.test_doubled import GOLDEN, golden_network, random_network
from unmask.diffusion.block import BlockDiffusion
from unmask.diffusion.block_exact import ExactBound, ExactLikelihood
from unmask.diffusion.clean import CleanRows
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.passes.whole import logits_at


def small_network(*, before: bool) -> Transformer:
    """Three letters and the mask."""
    generator = torch.Generator().manual_seed(5)
    network = Transformer(Architecture(vocab=4, length=5, width=8, blocks=2, heads=1, reads_before=before)).double()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return network.eval()


def nats(objective, network, x0, *, mask=MASK, frozen=None, seed=1):
    with torch.no_grad():
        noise = noise_of(*x0.shape, seed)
        return objective.nats(partial(logits_at, network), CleanRows(x0, noise=noise, mask=mask, frozen=frozen)).bound


@pytest.mark.parametrize(("kind", "name"), [(ExactBound, "bound"), (ExactLikelihood, "nll")])
def test_fifteen_passes_give_the_recorded_numbers(kind, name):
    cases = arrays_of(GOLDEN / "block_tiny_cases.npz")
    x0, given = cases["x0"].long(), torch.arange(24).expand(2, -1) < 1
    found = nats(kind(4), golden_network().freeze(), x0, mask=int(cases["mask_index"]), frozen=given)
    assert distance(found.view(2, 6, 4).sum(2), cases[f"main_exact_{name}_per_block"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_the_bound_of_all_blocks_at_once_is_that_of_each_by_itself(before):
    network, x0 = random_network(before=before), text(2, 11)
    found = nats(ExactBound(3), network, x0)
    by_block = torch.stack([part.sum(1) for part in found.split(3, 1)], 1)
    torch.testing.assert_close(by_block, exact_by_block(network, x0, 3), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_likelihoods_of_all_short_texts_sum_to_one_and_exponentials_of_the_bound_to_less(before, size):
    network, texts = small_network(before=before), every_text(3, 5)
    exact = nats(ExactLikelihood(size), network, texts, mask=3).sum(1)
    bound = nats(ExactBound(size), network, texts, mask=3).sum(1)
    assert float((-exact).exp().sum()) == pytest.approx(1, abs=1e-9)
    assert (exact <= bound + 1e-9).all()
    if size == 1:
        torch.testing.assert_close(exact, bound, rtol=1e-9, atol=1e-9)
    else:
        assert float((-bound).exp().sum()) < 0.99


@pytest.mark.slow
def test_likelihoods_given_some_tokens_sum_to_one_over_the_others():
    network, texts = small_network(before=True), every_text(3, 5)
    given = torch.tensor([True, False, False, True, False])
    x0 = texts[(texts[:, 0] == 2) & (texts[:, 3] == 1)]
    frozen = given.expand(len(x0), -1)
    exact = nats(ExactLikelihood(3), network, x0, mask=3, frozen=frozen)
    assert (exact[frozen] == 0).all()
    assert float((-exact.sum(1)).exp().sum()) == pytest.approx(1, abs=1e-9)


def test_likelihoods_sum_to_one_where_blocks_open_with_a_token_from_the_finished_text():
    network, texts = small_network(before=True), every_text(3, 5)
    x0 = texts[texts[:, 0] == 1]
    exact = nats(ExactLikelihood(3, True, True), network, x0, mask=3)
    bound = nats(ExactBound(3, True, True), network, x0, mask=3)
    assert float((-exact.sum(1)).exp().sum()) == pytest.approx(1, abs=1e-9)
    assert (exact.sum(1) <= bound.sum(1) + 1e-9).all()
    torch.testing.assert_close(exact[:, 3], bound[:, 3], rtol=1e-9, atol=1e-9)  # the first token of the second block
    many = x0[:1].expand(4000, -1)
    drawn = nats(BlockDiffusion(3, given_first=True, opens=True), network, many, mask=3).sum(1)
    assert abs(float(drawn.mean() - bound[0].sum())) < 4 * float(drawn.std()) / 4000**0.5
    with pytest.raises(UserError, match="given-first"):
        BlockDiffusion(3, opens=True)


@pytest.mark.slow
def test_the_monte_carlo_bound_agrees_within_its_error():
    network, x0 = random_network(before=True), text(1, 12)
    many = x0.expand(4000, -1)
    found = nats(BlockDiffusion(4), network, many).sum(1)
    told = float(nats(ExactBound(4), network, x0).sum())
    assert abs(float(found.mean()) - told) < 4 * float(found.std()) / 4000**0.5


@pytest.mark.slow
def test_too_large_blocks_are_refused_with_the_number_of_passes():
    network, x0 = random_network(before=True), text(1, 12)
    with pytest.raises(UserError, match="4,095 forward passes"):
        nats(ExactLikelihood(12), network, x0)
    assert nats(ExactLikelihood(12), network, text(1, 3)).shape == (1, 3), "a text of three tokens takes seven"
