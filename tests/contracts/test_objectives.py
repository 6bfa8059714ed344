"""Every objective trains, bounds, samples and scores with one schedule and one T: those of its checkpoint."""

from dataclasses import fields, replace

import pytest
import torch

import unmask
from contracts.members import LENGTH, LETTERS, NAMES, model_of, network_of, spec_of, unusual
from unmask.diffusion.clean import CleanRows
from unmask.diffusion.objective import OBJECTIVES, Facts, Objective
from unmask.errors import UserError
from unmask.evaluation.likelihood import measure
from unmask.evaluation.likelihood.measure import How
from unmask.model.denoiser import Denoiser, NetworkView
from unmask.random import Noise, keys
from unmask.registry import derived_fields
from unmask.sampling.policy import POLICIES
from unmask.sampling.recipe import Recipe, method_for
from unmask.sampling.score import log_likelihood, scored_by
from unmask.serving.http.requests import Controls, Requests
from unmask.serving.http.scoring import estimator_of
from unmask.serving.limits import Limits
from unmask.training import noise

pytestmark = pytest.mark.parametrize("name", NAMES["objectives"])


def rows(count: int = 5) -> torch.Tensor:
    return torch.randint(LETTERS.size - 3, (count, LENGTH), generator=torch.Generator().manual_seed(3))


def test_a_checkpoint_restores_the_objective_with_every_field(name, tmp_path):
    assert model_of(tmp_path / "m", unusual(name)).objective == unusual(name)


def test_evaluation_scoring_and_serving_measure_what_was_trained(name, tmp_path):
    """The same noise gives the same nats, to the last bit, in training's objective and in every estimator."""
    objective = unusual(name)
    model = model_of(tmp_path / "m", objective)
    drawn = noise.draw(5, LENGTH, seed=1, step=0)
    # Estimators make the keys of further random numbers from the first uniform of a row.
    u = drawn.u.double()
    drawn = Noise(drawn.t.double().clamp(0.01, 0.99), u, keys(0, (u[:, 0] * 2**53).long()))
    network, frozen = NetworkView(model.network), torch.zeros(5, LENGTH, dtype=torch.bool)
    with torch.no_grad():
        _, evaluated = measure.settle_measurement(model, How())
        served = estimator_of(Requests(model, Limits(), Controls(model, Limits())))
        own = objective.precise() if objective.facts.likelihood else objective.bounded()
        for one, measured in ((evaluated, own), (served, objective.bounded())):
            trained = measured.nats(
                network,
                CleanRows(rows(), noise=drawn, mask=model.mask, frozen=frozen, parts=model.parts, state=model.state),
            )
            # Estimators of a loss that needs σ keep away from t = 0, where it is infinite.
            t = drawn.t if not one.means.endswith("t >= 0.001") else (drawn.t - 1e-3) / (1 - 1e-3)
            found = one.nats(network, CleanRows(rows(), noise=Noise(t, drawn.u), mask=model.mask, frozen=frozen))
            torch.testing.assert_close(found.double(), trained.bound.double(), rtol=1e-6, atol=1e-9)
    if objective.facts.infills:
        assert scored_by(model) == objective.bounded()


def test_sampling_follows_the_schedule_and_the_steps_that_were_trained(name, tmp_path):
    objective = unusual(name)
    model = model_of(tmp_path / "m", objective)
    method = method_for(model, Recipe())
    policy = method.policy
    if objective.schedule and "schedule" in derived_fields(type(policy)):
        assert policy.schedule == objective.schedule
    for holder in (policy, method.process):
        if "kernel" in getattr(holder, "__dataclass_fields__", {}):
            assert holder.kernel == objective.kernel(model.parts)
    if objective.steps and policy.name == objective.facts.sampler and policy.budget:
        assert policy.steps == objective.steps


def test_a_step_has_a_finite_loss_and_a_gradient_for_all_that_is_learned(name):
    objective = OBJECTIVES.usual(name)
    spec = spec_of("transformer", causal=objective.facts.causal, sigma=objective.facts.network_wants_sigma)
    denoiser = Denoiser(network_of(spec, scale=0.2), objective)
    nats, _ = denoiser(rows(), noise.draw(5, LENGTH, seed=0, step=0), mask=LETTERS.mask)
    nats.loss.sum().backward()
    assert nats.loss.isfinite().all()
    assert nats.loss.shape == nats.bound.shape == (5, LENGTH)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in denoiser.parameters())


@pytest.mark.parametrize("sigma", [False, True])
def test_at_the_ends_of_time_loss_and_gradients_are_still_numbers(name, sigma):
    """t = 0 and its first step, and t just below 1: with T steps, one row in T of a training has them."""
    objective = OBJECTIVES.usual(name)
    sigma = (sigma and not objective.facts.remembers) or objective.facts.network_wants_sigma
    spec = spec_of("transformer", causal=objective.facts.causal, sigma=sigma)
    denoiser = Denoiser(network_of(spec, scale=0.2), objective)
    drawn = noise.draw(5, LENGTH, seed=0, step=0)
    ends = replace(drawn, t=torch.tensor([0.0, 1e-7, 1e-4, 1 - 1e-4, 1 - 2**-24]).to(drawn.t))
    nats, _ = denoiser(rows(), ends, mask=LETTERS.mask)
    nats.loss.sum().backward()
    assert nats.loss.isfinite().all()
    assert nats.bound.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in denoiser.parameters())


def test_frozen_tokens_are_given_and_the_mask_is_refused(name):
    objective = OBJECTIVES.usual(name)
    spec = spec_of("transformer", causal=objective.facts.causal, sigma=objective.facts.network_wants_sigma)
    denoiser, drawn = Denoiser(network_of(spec), objective), noise.draw(5, LENGTH, seed=0, step=0)
    frozen = torch.arange(LENGTH).expand(5, -1) < 4
    nats, _ = denoiser(rows(), drawn, mask=LETTERS.mask, frozen=frozen)
    assert (nats.bound[frozen] == 0).all()
    with pytest.raises(UserError, match="mask"):
        denoiser(rows().index_fill(1, torch.tensor([2]), LETTERS.mask), drawn, mask=LETTERS.mask)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this model was trained as a masked language model")
def test_a_model_samples_and_fills_blanks_and_scores_them_where_it_can(name, tmp_path):
    model = model_of(tmp_path / "m", name)
    few = {"steps": 6} if POLICIES[model.objective.facts.sampler].budget else {}
    one = unmask.sample(model, prompt="ab", length=8, **few)[0]
    assert one.text.startswith("ab")
    assert model.mask not in one.tokens
    if not model.objective.facts.infills:
        with pytest.raises(UserError, match="both sides"):
            unmask.infill(model, "a[2]b")
        return
    assert unmask.infill(model, "a[2]b", passes=4, **few)[0].text.startswith("a")
    tokens = torch.tensor(LETTERS.encode("abcabc"))
    assert log_likelihood(model, tokens, torch.arange(6) < 2, passes=8).nats < 0


def test_the_bound_is_the_same_whatever_else_is_in_the_batch(name, tmp_path):
    model = model_of(tmp_path / "m", name)
    drawn = noise.draw(5, LENGTH, seed=2, step=0)
    options = {"mask": model.mask, "parts": model.parts, "state": model.state}
    with torch.no_grad():
        network = NetworkView(model.network)
        whole = model.objective.nats(network, CleanRows(rows(), noise=drawn, **options)).bound
        alone = [
            model.objective.nats(
                network, CleanRows(rows()[i : i + 1], noise=drawn.rows(slice(i, i + 1)), **options)
            ).bound
            for i in range(5)
        ]
    torch.testing.assert_close(torch.cat(alone), whole, rtol=1e-4, atol=1e-4)


def test_an_objective_says_what_its_number_is(name):
    objective = OBJECTIVES.usual(name)
    likelihood = "exact" if objective.facts.exact else "bound on -log p"
    assert (likelihood if objective.facts.likelihood else "not a likelihood") in objective.means
    assert objective.bounded().facts.likelihood
    assert replace(objective) == objective
    assert hash(objective) == hash(replace(objective))


def test_an_objective_stays_small(name):
    """Facts and hooks are what every objective has to know of: a new one should replace an old one."""
    assert len(fields(Facts)) <= 12
    derived = {"counted", "estimator", "precise", "bounded"}
    attributes = {"facts", "advice", "registry", "name", "schedule", "times", "steps", "block", "opens"}
    hooks = {hook for hook in vars(Objective) if not hook.startswith("_")} - derived - attributes
    assert len(hooks) <= 14, hooks
    assert not derived & {*vars(OBJECTIVES[name])}, "these follow from the others"
