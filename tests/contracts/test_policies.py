"""Every sampler keeps frozen tokens, ends, and is written as one line."""

import pytest
import torch

from contracts.members import LETTERS, NAMES, model_of
from unmask.errors import UserError
from unmask.registry import own_fields, spelled
from unmask.sampling.policy import POLICIES, policy_of
from unmask.sampling.process import policies_of
from unmask.sampling.recipe import Recipe, method_for, samplers_for
from unmask.text.prompt.canvas import of_tokens

MASK = LETTERS.mask


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: model_of(folder / name, name) for name in ("mdlm", *NAMES["objectives"])}


def owner(models, name):
    """A model that can use the sampler."""
    return next(model for model in models.values() if name in samplers_for(model))


@pytest.mark.parametrize("name", NAMES["policies"])
def test_frozen_tokens_stay_and_every_blank_is_filled(models, name):
    model = owner(models, name)
    method = method_for(model, Recipe(sampler=name, steps=5 if POLICIES[name].budget else None))
    tokens = torch.tensor([[1, 4, MASK, MASK, MASK, MASK, MASK]]).repeat(3, 1)
    steps = list(method.fill(of_tokens(tokens, mask=MASK), seed=2, ids=torch.arange(3)))
    end = steps[-1].canvas.tokens
    assert (end[:, :2] == torch.tensor([1, 4])).all()
    assert (end != MASK).all()
    alone = list(method.fill(of_tokens(tokens[:1], mask=MASK), seed=2, ids=torch.tensor([1])))
    assert torch.equal(alone[-1].canvas.tokens[0], end[1]), "a row depends on nothing but its seed and number"


@pytest.mark.parametrize("name", NAMES["policies"])
def test_a_sampler_is_read_back_from_its_line(name):
    kind, budget = POLICIES[name], POLICIES[name].budget
    policy = policy_of(name, steps=6 if budget else None)
    assert POLICIES.make(spelled(policy)) == policy
    assert spelled(policy).split(":")[0] == name
    if budget:
        assert policy_of(f"{name}:{budget}=6") == policy
    with pytest.raises(UserError, match=r"no field of the sampler|has no fields to set"):
        policy_of(f"{name}:nonsense=1", steps=6 if budget else None)
    assert "schedule" not in own_fields(kind), "the schedule is the model's"


def test_a_model_names_its_own_sampler_first(models):
    for model in models.values():
        assert samplers_for(model)[0] == model.objective.facts.sampler
        followed = policies_of(model.objective.facts.process)
        assert all(POLICIES[name].process == followed for name in samplers_for(model))
