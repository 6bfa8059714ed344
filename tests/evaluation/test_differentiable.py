"""log_likelihood: the numbers of `score`, with gradients that are those of the bound itself."""

from types import SimpleNamespace

import pytest
import torch

import tiny
import unmask
from exact import bound_by_orders
from unmask.errors import UserError
from unmask.evaluation.differentiable import LogLikelihood
from unmask.model.denoiser import NetworkView

TEXTS = ["abba cab. ba", "cab", "fed"]


@pytest.fixture
def model(tmp_path):
    model = unmask.load(tiny.checkpoint(tmp_path / "mdlm"))
    model.network.requires_grad_(True)
    return model


def nudged(model, size: float, **options) -> torch.Tensor:
    """The value after a step along a fixed direction in all weights."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)
        value = unmask.log_likelihood(model, TEXTS, **options).value
        generator.manual_seed(5)
        for parameter in model.network.parameters():
            parameter -= size * torch.randn(parameter.shape, generator=generator)
    return value


@pytest.mark.parametrize("estimator", ["count", "time", "order", "weighted", "duel"])
def test_the_gradient_is_that_of_the_value(model, estimator):
    model.network.double()
    options = {"passes": 3, "seed": 2, "estimator": estimator}
    unmask.log_likelihood(model, TEXTS, **options).value.sum().backward()
    generator = torch.Generator().manual_seed(5)
    along = 0.0
    for parameter in model.network.parameters():
        direction = torch.randn(parameter.shape, generator=generator)
        along += 0.0 if parameter.grad is None else float((parameter.grad * direction).sum())
    step = 1e-5
    slope = float((nudged(model, step, **options) - nudged(model, -step, **options)).sum()) / (2 * step)
    assert along == pytest.approx(slope, rel=1e-3)


def test_the_value_is_unbiased_for_the_enumerated_bound(model):
    """A text of three letters: all orders, against the mean of 2,000 passes."""
    world = SimpleNamespace(letters=model.mask, mask=model.mask, network=NetworkView(model.network))
    ids = torch.tensor(model.tokenizer.encode("cab"))
    with torch.no_grad():
        bound = bound_by_orders(world, ids)
    found = unmask.log_likelihood(model, ["cab"] * 4, passes=500, seed=1)
    assert float(found.value.detach().mean()) == pytest.approx(-bound, abs=4 * float(found.standard_error.mean()) / 2)
    assert found.tokens.tolist() == [3.0] * 4
    assert found.passes == 500
    assert found.means.startswith("upper bound on -log p")


def test_numbers_are_those_of_score_and_errors_cover_the_spread(model):
    with torch.no_grad():
        seeds = [unmask.log_likelihood(model, TEXTS, passes=8, seed=seed) for seed in range(30)]
    mean = torch.stack([one.value for one in seeds]).mean(0)
    spread = torch.stack([one.value for one in seeds]).std(0)
    error = torch.stack([one.standard_error for one in seeds]).mean(0)
    scores = unmask.score(model, TEXTS, passes=128)
    for number, one in enumerate(scores):
        apart = abs(one.nats + float(mean[number]))
        assert apart < 4 * (one.standard_error + float(spread[number]) / 30**0.5)
    assert bool((spread < 1.3 * error).all())  # passes are stratified, so errors are on the safe side
    assert bool((error < 4 * spread).all())


def test_equal_arguments_give_equal_noise_and_a_text_does_not_depend_on_those_after_it(model):
    with torch.no_grad():
        first = unmask.log_likelihood(model, TEXTS, passes=2, seed=3).value
        assert torch.equal(first, unmask.log_likelihood(model, TEXTS, passes=2, seed=3).value)
        alone = unmask.log_likelihood(model, TEXTS[:1], passes=2, seed=3).value
        assert torch.allclose(first[:1], alone, atol=1e-5)
        assert not torch.equal(first, unmask.log_likelihood(model, TEXTS, passes=2, seed=4).value)


def test_what_is_given_is_read_and_not_scored(model):
    with torch.no_grad():
        found = unmask.log_likelihood(model, ["ab", "ab"], given=["cab ", "fed "], passes=4)
    assert found.tokens.tolist() == [2.0, 2.0]
    assert float(found.value[0]) != float(found.value[1])


def test_an_exact_number_takes_one_pass_and_has_no_error(tmp_path):
    model = unmask.load(tiny.checkpoint(tmp_path / "ar", objective="ar"))
    found = unmask.log_likelihood(model, ["abba"], given=["cab "], passes=7)
    assert isinstance(found, LogLikelihood)
    assert found.passes == 1
    assert found.standard_error.tolist() == [0.0]


def test_one_pass_has_no_error_bar_and_mistakes_are_told(model):
    with torch.no_grad():
        assert unmask.log_likelihood(model, ["ab"], passes=1).standard_error.tolist() == [float("inf")]
    for wrong, words in (
        ({"texts": "ab"}, "a list of texts"),
        ({"texts": []}, "give texts"),
        ({"texts": ["ab"], "given": ["a", "b"]}, "1 texts and 2 prompts"),
        ({"texts": ["ab"], "passes": 0}, "at least one pass"),
        ({"texts": ["ab", ""]}, "text 2 has no token"),
        ({"texts": ["ab", ""], "given": ["a", "b"]}, "text 2 has no token"),
        ({"texts": ["ab"], "estimator": "coun"}, "Did you mean 'count'"),
    ):
        with pytest.raises(UserError, match=words):
            unmask.log_likelihood(model, **wrong)
