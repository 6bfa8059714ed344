"""Every sampler keeps frozen tokens, ends, and is written as one line."""

import pytest
import torch

from contracts.members import LETTERS, NAMES, model_of
from unmask.errors import UserError
from unmask.registry import own_fields, spell_component
from unmask.sampling.fitting import samplers_for
from unmask.sampling.policy import POLICIES, policy_of
from unmask.sampling.process import PROCESSES
from unmask.sampling.recipe import Recipe, method_for
from unmask.text.prompt.canvas import of_tokens

MASK = LETTERS.mask


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: model_of(folder / name, name) for name in ("mdlm", *NAMES["objectives"])}


def owner(models, name):
    """A model that can use the sampler."""
    return next(model for model in models.values() if name in samplers_for(model.objective))


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
    assert POLICIES.make(spell_component(policy)) == policy
    assert spell_component(policy).split(":")[0] == name
    if budget:
        assert policy_of(f"{name}:{budget}=6") == policy
    with pytest.raises(UserError, match=r"no field of the sampler|has no fields to set"):
        policy_of(f"{name}:nonsense=1", steps=6 if budget else None)
    assert not {"schedule", "kernel"} & {*own_fields(kind)}, "schedule and kernel are the model's"


def test_a_model_names_its_own_sampler_first(models):
    for model in models.values():
        assert samplers_for(model.objective)[0] == model.objective.facts.sampler


def test_a_sampler_fits_where_its_needs_are_given_and_is_refused_by_name_elsewhere(models):
    for model in models.values():
        gives, known = model.objective.facts.gives, samplers_for(model.objective)
        for name in NAMES["policies"]:
            assert (name in known) == (POLICIES[name].needs <= gives), (name, model.objective.name)
            if name in known:
                continue
            with pytest.raises(UserError, match=f"'{name}' is not for this model: it needs ") as refused:
                method_for(model, Recipe(sampler=name))
            assert f"the objective {model.objective.name} gives" in str(refused.value)
            assert str(refused.value).endswith(f"Known for it: {', '.join(known)}.")


def test_every_need_is_given_by_some_objective_and_every_process_draws_one(models):
    given = frozenset().union(*(model.objective.facts.gives for model in models.values()))
    assert all(POLICIES[name].needs <= given for name in NAMES["policies"])
    processes = {type(method_for(model, Recipe()).process) for model in models.values()}
    assert processes == {PROCESSES[name] for name in PROCESSES}
    drawn = {name: method_for(model, Recipe()).process.name for name, model in models.items()}
    assert drawn["block"] == "blockwise"
    assert drawn["mdlm"] == drawn["sedd"] == drawn["mlm"] == "masked"
    assert drawn["plaid"] == drawn["ssd-lm"] == "continuous"
    assert drawn["d3pm-uniform"] == "uniform"
