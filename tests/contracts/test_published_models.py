"""Published models have what models of ours have: every sampler that fits, infilling, patterns, numbers."""

import math

import pytest

import unmask
from model.published import complete
from unmask.errors import UserError
from unmask.model.checkpoint import load
from unmask.sampling.fitting import samplers_for
from unmask.sampling.policy import POLICIES
from unmask.sampling.tasks.continuation import Continue

NAMES = ["llada", "dream", "diffugpt", "diffullama", "a2d_qwen3", "a2d_bd3lm", "sdar", "fast_dllm_v2", "smdm"]
NAMES += ["sedd", "duo", "dplm"]
NUMBERS = {"llada": 128, "dream": 512, "a2d_qwen3": 128, "a2d_bd3lm": 128, "sdar": 256, "fast_dllm_v2": 512}
PROMPT, MORE = "AG", "LV"  # letters that are amino acids too


@pytest.fixture(scope="module", params=NAMES)
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / request.param
    blocks = {"unmask_dialect": "a2d-bd3lm", "block_size": 8}
    name, keys = ("a2d_qwen3", blocks) if request.param == "a2d_bd3lm" else (request.param, {})
    return load(complete(name, folder, **keys))


@pytest.mark.filterwarnings("ignore:this model was not trained as a masked language model")  # Gibbs sampling
def test_every_sampler_that_fits_fills_the_blanks(model):
    for sampler in samplers_for(model.objective):
        steps = 3 if POLICIES[sampler].budget else None
        (one,) = unmask.sample(model, prompt=PROMPT, length=10, sampler=sampler, steps=steps)
        assert model.mask not in one.tokens, sampler
        assert one.text.startswith(PROMPT), sampler


def test_the_default_is_the_sampler_of_its_authors_and_their_number_of_tokens(model, request):
    assert model.new == NUMBERS.get(request.node.callspec.params["model"])
    steps = 4 if "steps" in model.sampling else None
    (one,) = unmask.sample(model, prompt=PROMPT, length=12, steps=steps)
    assert one.sampler == model.sampling["sampler"]
    row = Continue(PROMPT).row(model)
    blanks = row.tokens.count(model.mask)
    assert blanks == model.new or (model.new is None and len(row.tokens) == model.spec.length)


def test_a_pattern_holds(model):
    if not model.objective.facts.conditionals:
        with pytest.raises(UserError, match="pattern"):
            unmask.sample(model, prompt=PROMPT, length=10, pattern=f"[{MORE}]+")
        return
    (one,) = unmask.sample(model, prompt=PROMPT, length=10, steps=4 if "steps" in model.sampling else None,
                           pattern=f"[{MORE}]{{3,}}")  # fmt: skip
    assert set(one.text.removeprefix(PROMPT)) <= set(MORE)
    assert len(one.text) >= len(PROMPT) + 3


def test_blanks_are_filled(model):
    steps = 4 if "steps" in model.sampling else None
    (one,) = unmask.infill(model, f"{PROMPT}[3]{MORE}", passes=2, steps=steps)
    assert one.text.startswith(PROMPT)
    assert one.text.endswith(MORE)
    assert len(one.text) == 7
    assert math.isfinite(one.score)


def test_a_text_has_a_number_with_its_error_and_what_it_means(model, tmp_path):
    (tmp_path / "text.txt").write_text("AGLVSERTIDPK" * 2)
    found = unmask.evaluate(model, tmp_path / "text.txt", passes=2)
    assert 0 < found["nats_per_token"] < 20
    assert found["standard_error"] > 0
    assert "bound" in found["means"]
    assert math.isfinite(unmask.score(model, ["AGLV"], passes=2)[0].nats)
