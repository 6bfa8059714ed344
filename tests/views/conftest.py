"""A small model, the film of a sample, and points of a frontier as `unmask frontier` saves them."""

import pytest

import tiny
import unmask
from unmask.views.film import film


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("models") / "mdlm")


@pytest.fixture(scope="session")
def shown(model):
    one = unmask.sample(model, prompt="bad ", length=12)[0]
    return film(model.tokenizer, one.tokens, one.trace, caption="a </script> b")


@pytest.fixture
def points():
    def point(sampler, steps, calls, perplexity, warning=None):
        return {
            "sampler": sampler,
            "steps": steps,
            "temperature": 1.0,
            "calls": calls,
            "seconds_per_sample": calls / 1000,
            "generative_perplexity": perplexity,
            "standard_error": 0.5,
            "entropy": {"value": 5.0, "standard_error": None},
            "repetition": {"value": 0.25, "standard_error": 0.1},
            "means": "exp of the judge's nats per token",
            "warning": warning,
            "samples": 8,
        }

    return [
        point("first-hitting", None, 1024, 20.0),
        point("ancestral", 8, 8, 90.0, "low <entropy>"),
        point("ancestral", 32, 31, 40.0),
    ]
